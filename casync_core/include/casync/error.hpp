#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "casync/types.hpp"

/// Errors a user can meet. Each names what it is about (tensor, rank, both sides) and the remedy; docs/errors.md lists
/// them. What a program may want to know is in the fields of `ErrorFacts`, too: nobody has to read the text for it.
namespace casync {

/// What went wrong; each kind belongs to one class below, or to a class of Python's own. Numbers are on the wire:
/// append only.
enum class ErrorKind : std::uint8_t {
  internal = 0,          ///< InternalError, Error
  invalid_argument = 1,  ///< InvalidArgument
  unfit_plan = 2,        ///< InvalidArgument: a tensor does not fit the plan that was given for it
  unloaded_codec = 3,    ///< InvalidArgument: a codec from a file that the program has not named yet
  not_available = 4,     ///< Python only
  job = 5,               ///< Python only
  mismatch = 6,          ///< Mismatch
  joined = 7,            ///< Mismatch: it needs every rank, and the peer has joined
  peer_gone = 8,         ///< PeerFailure: the connection to the peer broke
  peer_silent = 9,       ///< PeerFailure: the peer gave no sign of life in time
  aborted = 10,          ///< Aborted: the peer's program failed
  shut_down = 11,        ///< Aborted: the peer has left
  fault = 12,            ///< Aborted: CaSync itself failed on the peer, or a codec did
  stalled = 13,          ///< Timeout: the peer has not submitted it
  corrupt_payload = 14,  ///< CorruptPayload: the bytes are the peer's
  device = 15,           ///< DeviceFailure, or Aborted: a device of the peer failed
  start = 16,            ///< Python only
  storage = 17,          ///< Python only
};

inline constexpr std::array<std::string_view, 18> kErrorKindName{
    "internal", "invalid_argument", "unfit_plan",      "unloaded_codec", "not_available", "job",
    "mismatch", "joined",           "peer_gone",       "peer_silent",    "aborted",       "shut_down",
    "fault",    "stalled",          "corrupt_payload", "device",         "start",         "storage"};
constexpr std::string_view name_of(ErrorKind kind) { return kErrorKindName[static_cast<std::size_t>(kind)]; }

/// What an error is about, for programs. Made where the error is, and only then.
struct ErrorFacts {
  ErrorKind kind = ErrorKind::internal;  ///< in a constructor below, `internal` means the usual kind of that class
  std::string tensor{};                  ///< empty: none
  std::optional<OpKind> op{};
  std::optional<std::uint32_t> rank{};  ///< that raises it; this and `peer` as the world counts, where a session raises
  std::optional<std::uint32_t> peer{};  ///< that is to blame, which may be the rank itself
  friend bool operator==(const ErrorFacts&, const ErrorFacts&) = default;
};

/// Root of everything CaSync throws on purpose.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text, ErrorFacts about = {}) : runtime_error(text), facts(std::move(about)) {}

  ErrorFacts facts;

 protected:
  Error(const std::string& text, ErrorFacts about, ErrorKind usual) : Error(text, std::move(about)) {
    if (facts.kind == ErrorKind::internal) facts.kind = usual;
  }
};

/// A wrong argument, found where it was given: nothing was submitted. Python: ValueError.
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::invalid_argument) {}
};

/// Ranks disagree about an operation (shape, dtype, op, codec). Raised on every rank; the session stays usable.
class Mismatch : public Error {
 public:
  explicit Mismatch(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::mismatch) {}
};

/// A peer is dead, unreachable or stopped. The session is over; the text names the peer and how it was noticed.
class PeerFailure : public Error {
 public:
  explicit PeerFailure(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::peer_gone) {}
};

/// The session was aborted (an exception on some rank) or shut down while the operation was outstanding.
class Aborted : public Error {
 public:
  explicit Aborted(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::aborted) {}
};

/// The operation did not finish within the session's timeout; the text is the stall report.
class Timeout : public Error {
 public:
  explicit Timeout(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::stalled) {}
};

/// Bytes that are not what the plan says they must be: truncated, foreign or corrupted payloads.
class CorruptPayload : public Error {
 public:
  explicit CorruptPayload(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::corrupt_payload) {}
};

/// A device, or what drives it, is not there, or failed in a call of the program: nothing was submitted.
class DeviceFailure : public Error {
 public:
  explicit DeviceFailure(const std::string& text, ErrorFacts about = {})
      : Error(text, std::move(about), ErrorKind::device) {}
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
