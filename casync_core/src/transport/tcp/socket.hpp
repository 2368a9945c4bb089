#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

/// A connected stream socket, of TCP or of this host, that never blocks.
namespace casync::transport::tcp {

/// What a call has moved, and why it moved no more. `ended`: the peer sends nothing more. `error`: errno of a
/// connection that is lost; 0 if it stands.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;
  int error = 0;
};

/// As the kernel takes it; what is only sent stays as it is.
inline iovec part(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

/// Owns a descriptor. One thread.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor);
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  /// As much as there is room for.
  Moved send(std::span<iovec> from) const;
  /// As much as has come. Zero bytes, not `ended` and no `error`: nothing has.
  Moved receive(std::span<iovec> into) const;
  /// The peer reads what was sent, then the end.
  void end_sending() const;
  /// Of a connection that the kernel says is lost.
  int pending_error() const;
  void close();

 private:
  int descriptor_ = -1;
};

/// "Connection reset by peer (errno 104)"
std::string error_text(int error);

}  // namespace casync::transport::tcp
