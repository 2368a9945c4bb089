#include "engine/log_record.hpp"

#include <array>
#include <limits>

#include "common/crc32c.hpp"
#include "plan/plan_wire.hpp"

namespace casync::log {
namespace {

void put_bytes(ByteWriter& writer, std::span<const std::byte> bytes) { writer.put_text(text_of(bytes)); }

std::span<const std::byte> take_bytes(ByteReader& reader) { return reader.take(reader.get<std::uint32_t>()); }

}  // namespace

Nanoseconds get_time(ByteReader& reader) {
  const auto time = reader.get<Nanoseconds>();
  if (time < 0 || time > kLongestTime) throw CorruptPayload(detail::concat("a time of ", time, " ns cannot be"));
  return time;
}

void put(Bytes& out, const EngineOptions& options) {
  ByteWriter writer(out);
  writer.put(options.member);
  writer.put(static_cast<std::uint32_t>(options.host_of.size()));
  for (const std::uint32_t host : options.host_of) writer.put(host);
  writer.put(static_cast<std::uint64_t>(options.inline_bytes));
  writer.put(static_cast<std::uint64_t>(options.pool_bytes));
  writer.put(static_cast<std::uint64_t>(options.eager_bytes));
  writer.put(options.heartbeat.interval);
  writer.put(options.heartbeat.timeout);
  writer.put(options.ledger.stall_warning);
  writer.put(options.ledger.timeout);
}

EngineOptions get_options(ByteReader& reader) {
  EngineOptions options;
  options.member = reader.get<std::uint32_t>();
  const auto members = reader.get<std::uint32_t>();
  if (members > reader.left() / sizeof(std::uint32_t))
    throw CorruptPayload("an event log names more members than it has bytes");
  if (options.member >= members || members > std::numeric_limits<std::uint16_t>::max())
    throw CorruptPayload(detail::concat("an event log of member ", options.member, " of ", members, " cannot be"));
  for (std::uint32_t m = 0; m < members; ++m) options.host_of.push_back(reader.get<std::uint32_t>());
  options.inline_bytes = reader.get<std::uint64_t>();
  options.pool_bytes = reader.get<std::uint64_t>();
  options.eager_bytes = reader.get<std::uint64_t>();
  options.heartbeat.interval = get_time(reader);
  options.heartbeat.timeout = get_time(reader);
  options.ledger.stall_warning = get_time(reader);
  options.ledger.timeout = get_time(reader);
  return options;
}

void put(Bytes& out, const Event& event, std::uint64_t number, Nanoseconds now) {
  ByteWriter writer(out);
  writer.put(now);
  writer.put(event.kind);
  writer.put(event.status);
  writer.put(event.flag);
  writer.put(event.peer);
  writer.put(event.id);
  writer.put(event.task);
  writer.put(event.op);
  writer.put(event.sequence);
  writer.put(event.tag);
  writer.put(event.size);
  writer.put(number);
  put_bytes(writer, event.bytes);
}

Event get_event(ByteReader& reader, Nanoseconds& now) {
  Event event;
  now = get_time(reader);
  event.kind = reader.get<EventKind>();
  event.status = reader.get<Status>();
  event.flag = reader.get<bool>();
  event.peer = reader.get<std::uint16_t>();
  event.id = reader.get<std::uint32_t>();
  event.task = reader.get<std::uint32_t>();
  event.op = reader.get<std::uint32_t>();
  event.sequence = reader.get<std::uint32_t>();
  event.tag = reader.get<std::uint32_t>();
  event.size = reader.get<std::uint64_t>();
  event.value = reader.get<std::uint64_t>();
  event.bytes = take_bytes(reader);
  return event;
}

Trace trace_of(const Action& action, std::uint64_t number) {
  return {action.kind,
          action.status,
          action.peer,
          action.id,
          action.task,
          action.nonfinite ? 1U : 0U,
          static_cast<std::uint32_t>(action.bytes.size()),
          crc32c(action.bytes),
          number};
}

std::string describe(const Trace& trace) {
  constexpr std::array kKinds{"begin",   "reserve", "run",     "send",   "accept",  "drop",
                              "release", "finish",  "control", "report", "measure", "stand_in"};
  const auto kind = static_cast<std::size_t>(trace.kind);
  return detail::concat(kind < kKinds.size() ? kKinds[kind] : "unknown", " {instance ", trace.id, ", task ", trace.task,
                        ", peer ", trace.peer, ", value ", trace.value, ", status ", static_cast<int>(trace.status),
                        ", nonfinite ", trace.nonfinite, ", ", trace.length, " bytes with checksum ", trace.check, "}");
}

void put_answer(Bytes& out, Question question, const std::vector<std::string>& codecs) {
  ByteWriter writer(out);
  writer.put(question);
  writer.put(static_cast<std::uint32_t>(codecs.size()));
  for (const std::string& codec : codecs) writer.put_text(codec);
}

void put_answer(Bytes& out, Question question, bool yes) {
  ByteWriter writer(out);
  writer.put(question);
  writer.put(yes);
}

void put_answer(Bytes& out, Question question, const std::optional<Bytes>& costs) {
  ByteWriter writer(out);
  writer.put(question);
  writer.put(costs.has_value());
  if (costs) put_bytes(writer, *costs);
}

void put_answer(Bytes& out, Question question, const std::optional<GradientPlan>& plan) {
  ByteWriter writer(out);
  writer.put(question);
  writer.put(plan.has_value());
  if (plan) casync::put(out, *plan);
}

std::vector<std::string> get_codecs(ByteReader& reader) {
  std::vector<std::string> codecs;
  for (auto left = reader.get<std::uint32_t>(); left > 0; --left) codecs.push_back(reader.get_text());
  return codecs;
}

std::optional<Bytes> get_costs(ByteReader& reader) {
  if (!reader.get<bool>()) return std::nullopt;
  const auto bytes = take_bytes(reader);
  return Bytes{bytes.begin(), bytes.end()};
}

std::optional<GradientPlan> get_answered_plan(ByteReader& reader) {
  if (!reader.get<bool>()) return std::nullopt;
  return get_plan(reader);
}

}  // namespace casync::log
