#include "transport/tcp/socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "casync/error.hpp"

namespace casync::transport::tcp {
namespace {

msghdr message_of(std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return message;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  const int flags = fcntl(descriptor_, F_GETFL);
  if (flags < 0 || fcntl(descriptor_, F_SETFL, flags | O_NONBLOCK) != 0)
    throw Error(detail::concat("descriptor ", descriptor_, " is no socket: ", error_text(errno)));
}

Socket::~Socket() { close(); }

void Socket::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Moved Socket::send(std::span<iovec> from) const {
  const msghdr message = message_of(from);
  for (;;) {
    const ssize_t sent = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (sent >= 0) return {.bytes = static_cast<std::size_t>(sent)};
    if (errno == EINTR) continue;
    return {.error = would_block(errno) ? 0 : errno};
  }
}

Moved Socket::receive(std::span<iovec> into) const {
  msghdr message = message_of(into);
  for (;;) {
    const ssize_t received = recvmsg(descriptor_, &message, 0);
    if (received > 0) return {.bytes = static_cast<std::size_t>(received)};
    if (received == 0) return {.ended = true};
    if (errno == EINTR) continue;
    return {.error = would_block(errno) ? 0 : errno};
  }
}

void Socket::end_sending() const { shutdown(descriptor_, SHUT_WR); }

int Socket::pending_error() const {
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

std::string error_text(int error) { return detail::concat(std::strerror(error), " (errno ", error, ")"); }

}  // namespace casync::transport::tcp
