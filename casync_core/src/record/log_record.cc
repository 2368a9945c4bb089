#include "record/log_record.hpp"

#include <array>
#include <limits>

#include "plan/plan_wire.hpp"

namespace casync::log {
namespace {

void write(ByteWriter& writer, Bytes& out, const event::Define& event) {
  writer.put(event.registration);
  put_definition(out, event.definition);
}
void write(ByteWriter& writer, Bytes&, const event::Submit& event) {
  writer.put(event.registration);
  writer.put(event.handle);
  writer.put(event.settled);
  writer.put(event.steps);
  writer.put(event.rows);
  writer.put(event.on_stream);
  writer.put(event.by_lane);
  for (const std::int64_t rows : event.splits) writer.put(rows);
}
void write(ByteWriter& writer, Bytes&, const event::Control& event) {
  writer.put(event.peer);
  writer.put_bytes(event.message);
}
void write(ByteWriter& writer, Bytes&, const event::Arrived& event) {
  writer.put(event.peer);
  writer.put(event.key);
  writer.put(event.message_id);
}
void write(ByteWriter& writer, Bytes& out, const event::Ran& event) {
  writer.put(event.instance);
  writer.put(event.task);
  writer.put(event.bytes);
  writer.put(event.nonfinite);
  if (event.failure != nullptr) casync::put(out, *event.failure);
}
void write(ByteWriter& writer, Bytes&, const event::Sent& event) { writer.put(event); }
void write(ByteWriter& writer, Bytes&, const event::Received& event) {
  writer.put(event.instance);
  writer.put(event.task);
  writer.put(event.bytes);
}
void write(ByteWriter& writer, Bytes&, const event::PeerDown& event) {
  writer.put(event.peer);
  writer.put_text(event.why);
}
void write(ByteWriter&, Bytes& out, const event::GiveUp& event) { casync::put(out, event.why); }
void write(ByteWriter&, Bytes&, const event::Shutdown&) {}
void write(ByteWriter& writer, Bytes&, const event::CostsKnown& event) { writer.put_bytes(event.costs); }
void write(ByteWriter& writer, Bytes& out, const event::Planned& event) {
  for (const auto& [op, plan] : event.plans) {
    writer.put(op);
    writer.put(plan.has_value());
    if (plan) casync::put(out, *plan);
  }
}
void write(ByteWriter&, Bytes&, const event::PlansChanged&) {}
void write(ByteWriter& writer, Bytes&, const event::Launched& event) { writer.put(event); }
void write(ByteWriter& writer, Bytes&, const event::Flowed& event) {
  for (const Rank peer : event.peers) writer.put(peer);
}
void write(ByteWriter& writer, Bytes&, const event::Forget& event) { writer.put(event); }

}  // namespace

Nanoseconds get_time(ByteReader& reader) {
  const auto time = reader.get<Nanoseconds>();
  if (time < 0 || time > kLongestTime) throw CorruptPayload(detail::concat("a time of ", time, " ns cannot be"));
  return time;
}

void put(Bytes& out, const EngineOptions& options) {
  ByteWriter writer(out);
  writer.put(options.member);
  const auto members = static_cast<std::uint32_t>(options.host_of.size());
  writer.put(members);
  for (const std::uint32_t host : options.host_of) writer.put(host);
  writer.put(static_cast<std::uint64_t>(options.inline_bytes));
  writer.put(static_cast<std::uint64_t>(options.pool_bytes));
  writer.put(static_cast<std::uint64_t>(options.eager_bytes));
  writer.put(static_cast<std::uint64_t>(options.at_once_bytes));
  writer.put(static_cast<std::uint64_t>(options.batch_bytes));
  writer.put(static_cast<std::uint64_t>(options.kept.first));
  writer.put(static_cast<std::uint64_t>(options.kept.most));
  writer.put(options.ready_interval.value_or(Negotiation::interval_for(members)));
  writer.put(options.heartbeat.interval);
  writer.put(options.heartbeat.timeout);
  writer.put(options.tensor_table.stall_warning);
  writer.put(options.tensor_table.timeout);
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
  options.at_once_bytes = reader.get<std::uint64_t>();
  options.batch_bytes = reader.get<std::uint64_t>();
  options.kept.first = reader.get<std::uint64_t>();
  options.kept.most = reader.get<std::uint64_t>();
  options.ready_interval = get_time(reader);
  options.heartbeat.interval = get_time(reader);
  options.heartbeat.timeout = get_time(reader);
  options.tensor_table.stall_warning = get_time(reader);
  options.tensor_table.timeout = get_time(reader);
  return options;
}

void put(Bytes& out, const Event& event, Nanoseconds now) {
  ByteWriter writer(out);
  writer.put(now);
  writer.put(static_cast<std::uint8_t>(event.index()));
  std::visit([&](const auto& what) { write(writer, out, what); }, event);
}

Event get_event(ByteReader& reader, Nanoseconds& now, Stored& stored) {
  now = get_time(reader);
  const auto number = [&] { return reader.get<std::uint32_t>(); };
  const auto rest = [&] { return reader.take(reader.left()); };
  // In the order of Event's alternatives.
  switch (reader.get<std::uint8_t>()) {
    case 0: {
      const std::uint32_t registration = number();
      stored.definition = get_definition(rest());
      return event::Define{registration, stored.definition};
    }
    case 1: {
      event::Submit submit{
          number(),           number(),          reader.get<Settled>(), number(), reader.get<std::int64_t>(),
          reader.get<bool>(), reader.get<bool>()};
      stored.splits.clear();
      while (reader.left() > 0) stored.splits.push_back(reader.get<std::int64_t>());
      submit.splits = stored.splits;
      return submit;
    }
    case 2: {
      const Rank peer = number();
      return event::Control{peer, reader.get_bytes()};
    }
    case 3:
      return event::Arrived{number(), reader.get<MessageKey>(), reader.get<std::uint64_t>()};
    case 4: {
      event::Ran ran{number(), number(), reader.get<std::uint64_t>(), reader.get<bool>()};
      if (reader.left() > 0) {
        stored.why = get_abort(rest());
        ran.failure = &stored.why;
      }
      return ran;
    }
    case 5:
      return event::Sent{number(), number()};
    case 6:
      return event::Received{number(), number(), reader.get<std::uint64_t>()};
    case 7: {
      const Rank peer = number();
      return event::PeerDown{peer, text_of(reader.get_bytes())};
    }
    case 8:
      stored.why = get_abort(rest());
      return event::GiveUp{stored.why};
    case 9:
      return event::Shutdown{};
    case 10:
      return event::CostsKnown{reader.get_bytes()};
    case 11:
      stored.plans.clear();
      while (reader.left() > 0) {
        stored.plans.push_back({number(), std::nullopt});
        if (reader.get<bool>()) stored.plans.back().plan = get_plan(reader);
      }
      return event::Planned{stored.plans};
    case 12:
      return event::PlansChanged{};
    case 13:
      return event::Launched{number(), number()};
    case 14:
      stored.peers.clear();
      while (reader.left() > 0) stored.peers.push_back(reader.get<Rank>());
      return event::Flowed{stored.peers};
    case 15:
      return event::Forget{number()};
    default:
      throw CorruptPayload("an event log holds an event of an unknown kind");
  }
}

}  // namespace casync::log
