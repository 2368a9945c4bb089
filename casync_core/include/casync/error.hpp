#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

/// Errors a user can meet. Each names what it is about (tensor, rank, both sides) and the remedy; docs/errors.md lists
/// them.
namespace casync {

/// Root of everything CaSync throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A wrong argument, found where it was given: nothing was submitted. Python: ValueError.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree about an operation (shape, dtype, op, codec). Raised on every rank; the session stays usable.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// A peer is dead, unreachable or stopped. The session is over; the text names the peer and how it was noticed.
class PeerFailure : public Error {
 public:
  using Error::Error;
};

/// The session was aborted (an exception on some rank) or shut down while the operation was outstanding.
class Aborted : public Error {
 public:
  using Error::Error;
};

/// The operation did not finish within the session's timeout; the text is the stall report.
class Timeout : public Error {
 public:
  using Error::Error;
};

/// Bytes that are not what the plan says they must be: truncated, foreign or corrupted payloads.
class CorruptPayload : public Error {
 public:
  using Error::Error;
};

/// An invariant of CaSync itself does not hold: a bug, to be reported.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
}  // namespace detail

}  // namespace casync

/// Checks an invariant of our own; evaluates `condition` once, quotes it, and appends the parts given.
#define CASYNC_CHECK(condition, ...)                                                                            \
  do {                                                                                                          \
    if (!(condition)) [[unlikely]]                                                                              \
      throw ::casync::InternalError(                                                                            \
          ::casync::detail::concat(__FILE__, ":", __LINE__, ": " #condition __VA_OPT__(, ": ", ) __VA_ARGS__)); \
  } while (false)
