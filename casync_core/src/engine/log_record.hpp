#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/wire.hpp"
#include "engine/engine.hpp"

/// The records of an event log: written by EventLog, read by replay.
namespace casync::log {

inline constexpr std::uint64_t kMagic =
    0x474f4c434e595341ULL;  // "ASYNCLOG", in the byte order of the machine that wrote it
inline constexpr std::uint32_t kVersion = 4;

enum class Record : std::uint8_t { event = 1, decide = 2, answer = 3, action = 4 };

/// Which question to the Planning an answer belongs to.
enum class Question : std::uint8_t { define = 1, measuring = 2, costs = 3, plan = 4, re_plan = 5 };

using Bytes = std::vector<std::byte>;

Nanoseconds get_time(ByteReader& reader);

void put(Bytes& out, const EngineOptions& options);
EngineOptions get_options(ByteReader& reader);

/// `number` takes the place of a handle's address in submit events and in begin and finish actions.
void put(Bytes& out, const Event& event, std::uint64_t number, Nanoseconds now);
/// The event's bytes lie in what is read.
Event get_event(ByteReader& reader, Nanoseconds& now);

/// An action as it is compared: all its fields, and length and hash of its bytes.
struct Trace {
  ActionKind kind = ActionKind::begin;
  Status status = Status::ok;
  std::uint16_t peer = 0;
  std::uint32_t id = 0;
  std::uint32_t task = 0;
  std::uint32_t nonfinite = 0;
  std::uint32_t length = 0;
  std::uint32_t check = 0;
  std::uint64_t value = 0;
  friend bool operator==(const Trace&, const Trace&) = default;
};
Trace trace_of(const Action& action, std::uint64_t number);
std::string describe(const Trace& trace);

void put_answer(Bytes& out, Question question, const std::vector<std::string>& codecs);
void put_answer(Bytes& out, Question question, bool yes);
void put_answer(Bytes& out, Question question, const std::optional<Bytes>& costs);
void put_answer(Bytes& out, Question question, const std::optional<GradientPlan>& plan);
std::vector<std::string> get_codecs(ByteReader& reader);
std::optional<Bytes> get_costs(ByteReader& reader);
std::optional<GradientPlan> get_answered_plan(ByteReader& reader);

}  // namespace casync::log
