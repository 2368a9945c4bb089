#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/doorbell.hpp"

/// The doorbells of the ranks of one host, in a POSIX shared-memory segment.
namespace casync::transport::mpi {

/// One rank creates the segment, the others open it, and it is unlinked as soon as all have: nothing stays behind,
/// however the processes end. `nonce` tells a segment of this session from a stale or foreign one of the same name.
class HostBells {
 public:
  /// Null if shared memory is not to be had (none mounted, full, or another container's): the session then polls.
  static std::unique_ptr<HostBells> create(const std::string& name, int cells, std::uint64_t nonce);
  static std::unique_ptr<HostBells> open(const std::string& name, int cells, std::uint64_t nonce);
  static void unlink(const std::string& name);
  /// For a rank alone: plain memory of this process.
  static std::unique_ptr<HostBells> own();

  ~HostBells();
  HostBells(const HostBells&) = delete;
  HostBells& operator=(const HostBells&) = delete;

  DoorbellCell& cell(int index) { return cells_[index]; }

 private:
  struct Segment;
  HostBells(Segment* segment, std::size_t bytes);
  static std::unique_ptr<HostBells> map(int descriptor, std::size_t bytes);

  Segment* segment_;
  std::size_t bytes_;
  DoorbellCell* cells_;
};

}  // namespace casync::transport::mpi
