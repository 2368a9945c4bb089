#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "casync/types.hpp"
#include "transport/doorbell.hpp"

/// Which connections have something, and the place to sleep until one has.
namespace casync::transport::tcp {

/// Of a connection: what it is watched for, or has.
struct Ready {
  std::uint64_t tag = 0;
  bool to_read = false;
  bool to_write = false;
  bool lost = false;  ///< both ways have ended, or the kernel knows of an error; watched for at all times
};

/// An epoll set and a bell. One thread at a time, but for `ring`, which any thread may call, and `sleep`, in which one
/// thread may be while another calls the rest.
class Readiness {
 public:
  explicit Readiness(DoorbellCell& bell);
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  void add(int descriptor, const Ready& what);
  void change(int descriptor, const Ready& what);
  void remove(int descriptor);

  /// What is ready now, until the next call.
  std::span<Ready> now();
  /// Until something is ready, a ring, or `timeout`; may return early.
  void sleep(Nanoseconds timeout);
  /// A ring of this process.
  void ring();

 private:
  DoorbellCell& cell_;
  Doorbell bell_;
  int epoll_ = -1;
  int event_ = -1;  ///< an eventfd: how `ring` wakes who sleeps in the kernel
  std::vector<Ready> ready_;
};

}  // namespace casync::transport::tcp
