#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/doorbell.hpp"

/// What the ranks of one host share, in a POSIX shared-memory segment: a doorbell each, and mailboxes for each pair.
namespace casync::transport::host {

/// One rank creates the segment, the others open it, and it is unlinked as soon as all have: nothing stays behind,
/// however the processes end. `nonce` tells a segment of this session from a stale or foreign one of the same name.
class HostMemory {
 public:
  /// Null if shared memory is not to be had (none mounted, full, or another container's): the session then polls. If
  /// there is little, or `ranks` are many, it has no mailboxes.
  static std::unique_ptr<HostMemory> create(const std::string& name, int ranks, std::uint64_t nonce);
  static std::unique_ptr<HostMemory> open(const std::string& name, int ranks, std::uint64_t nonce);
  static void unlink(const std::string& name);
  /// For a rank alone: plain memory of this process.
  static std::unique_ptr<HostMemory> own();

  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  DoorbellCell& bell(int rank) { return bells_[rank]; }
  /// What `from` writes and `to` reads, two different ranks of the host; empty if there are no mailboxes.
  std::span<std::byte> mailbox(int from, int to);

 private:
  struct Segment;
  HostMemory(Segment* segment, int ranks, std::size_t box_bytes);
  static std::unique_ptr<HostMemory> map(int descriptor, int ranks, std::size_t box_bytes);
  static std::size_t size(int ranks, std::size_t box_bytes);

  Segment* segment_;
  int ranks_;
  std::size_t box_bytes_;
  DoorbellCell* bells_;
};

}  // namespace casync::transport::host
