#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// What a session says to the user's log.
namespace casync {

enum class LogLevel : std::uint8_t { trace, debug, info, warning, error, fatal };

inline constexpr std::array<std::string_view, 6> kLogLevelName{"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"};

/// One message: a text for people, and the same facts as fields for programs. The field "event" is one of these words,
/// and says which other fields there are:
///   stall      an operation waits for ranks: tensor, op, ranks (the missing ones)
///   nonfinite  a result holds NaN or Inf: tensor, op, step, ranks (whose gradient it was, as far as this rank knows)
///   plan       the root has planned a tensor: tensor, codec, topology, partitions, first_owner, epoch, and, unless the
///              plan was given, predicted_s, uncompressed_s and payload_bytes
///   costs      what the root plans by from now on: inter_s_per_byte, inter_latency_s, inter_message_s, and of the
///              links inside a host likewise
///   drift      steps no longer take what was predicted: measured_s and expected_s of the last one
/// Ranks are counted as the world does.
struct LogRecord {
  using Value = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>;
  LogLevel level = LogLevel::warning;
  std::string text;
  std::map<std::string, Value> fields{};
};

/// Called on any thread that makes progress, one at a time for what the Engine and the planner say. Does not throw.
using Log = std::function<void(const LogRecord&)>;

}  // namespace casync
