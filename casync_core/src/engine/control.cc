#include "engine/control.hpp"

#include <limits>

#include "common/hash.hpp"
#include "common/wire.hpp"
#include "plan/plan_wire.hpp"

namespace casync {
namespace {

ByteWriter begin(Bytes& out, ControlKind kind) {
  ByteWriter writer(out);
  writer.put(kind);
  return writer;
}

ByteReader expect(std::span<const std::byte> message, ControlKind kind) {
  ByteReader reader(message);
  if (reader.get<ControlKind>() != kind) throw CorruptPayload("a control message is not of the expected kind");
  return reader;
}

/// Why something failed; "ok" is no such reason.
Status get_failure(ByteReader& reader) {
  const auto status = reader.get<Status>();
  switch (status) {
    case Status::mismatch:
    case Status::timeout:
    case Status::aborted:
    case Status::peer_failure:
    case Status::corrupt:
      return status;
    case Status::ok:
      break;
  }
  throw CorruptPayload(detail::concat("status ", static_cast<int>(status), " is that of no failure"));
}

constexpr std::uint8_t kNoOp = 0xff;

void put(ByteWriter& writer, const ErrorFacts& facts) {
  writer.put(facts.kind);
  writer.put_text(facts.tensor);
  writer.put(facts.op ? static_cast<std::uint8_t>(*facts.op) : kNoOp);
  writer.put(facts.peer ? std::int64_t{*facts.peer} : std::int64_t{-1});
}

ErrorFacts get_facts(ByteReader& reader) {
  ErrorFacts facts;
  facts.kind = reader.get<ErrorKind>();
  if (static_cast<std::size_t>(facts.kind) >= kErrorKindName.size())
    throw CorruptPayload(detail::concat("error kind ", static_cast<int>(facts.kind), " has no meaning"));
  facts.tensor = reader.get_text();
  if (const auto op = reader.get<std::uint8_t>(); op != kNoOp) {
    if (op >= kOpKindName.size()) throw CorruptPayload(detail::concat("operation ", int{op}, " has no meaning"));
    facts.op = static_cast<OpKind>(op);
  }
  const auto peer = reader.get<std::int64_t>();
  if (peer < -1 || peer > std::numeric_limits<std::uint16_t>::max())
    throw CorruptPayload(detail::concat("there is no rank ", peer));
  if (peer >= 0) facts.peer = static_cast<std::uint32_t>(peer);
  return facts;
}

void put(ByteWriter& writer, const std::vector<std::int64_t>& rows) {
  writer.put(static_cast<std::uint32_t>(rows.size()));
  for (const std::int64_t count : rows) writer.put(count);
}

std::vector<std::int64_t> get_rows(ByteReader& reader) {
  const auto members = reader.get<std::uint32_t>();
  if (members > reader.left() / sizeof(std::int64_t))
    throw CorruptPayload("a control message names more members than it has bytes");
  std::vector<std::int64_t> rows(members);
  for (std::int64_t& count : rows) count = reader.get<std::int64_t>();
  return rows;
}

}  // namespace

Settled settled_by(std::string_view codec) { return static_cast<Settled>(hash_text(codec)) | 1U; }

ControlKind kind_of(std::span<const std::byte> message) {
  const auto kind = ByteReader(message).get<ControlKind>();
  if (kind > ControlKind::moves) throw CorruptPayload("a control message of an unknown kind");
  return kind;
}

bool same_terms(const Ready& a, const Ready& b) {
  return a.sequence == b.sequence && a.wants_start == b.wants_start && a.settled == b.settled && a.step == b.step &&
         a.by_lane == b.by_lane;
}
bool same_terms(const Start& a, const Start& b) {
  return a.sequence == b.sequence && a.settled == b.settled && a.step == b.step && a.by_lane == b.by_lane;
}

void put_definition(Bytes& out, const Request& definition) {
  ByteWriter writer(out);
  writer.put_text(definition.name);
  writer.put(definition.sequence);
  put(out, definition.signature);
  writer.put_text(definition.site);
}

Request get_definition(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Request request;
  request.name = reader.get_text();
  request.sequence = reader.get<std::uint32_t>();
  request.signature = get_signature(reader);
  request.site = reader.get_text();
  return request;
}

void put(Bytes& out, const Request& message) {
  ByteWriter writer = begin(out, ControlKind::request);
  writer.put(message.settled);
  writer.put(message.step);
  writer.put(message.evictions);
  put(writer, message.splits);
  put_definition(out, message);
}
void put(Bytes& out, const Ready& message) {
  ByteWriter writer = begin(out, ControlKind::ready);
  writer.put(message.sequence);
  writer.put(message.wants_start);
  writer.put(message.settled);
  writer.put(message.step);
  writer.put(message.by_lane);
  message.ops.put(writer);
}
void put(Bytes& out, const Start& message) {
  ByteWriter writer = begin(out, ControlKind::start);
  writer.put(message.sequence);
  writer.put(message.settled);
  writer.put(message.step);
  writer.put(message.by_lane);
  message.ops.put(writer);
}
void put(Bytes& out, const Moves& message) { begin(out, ControlKind::moves).put(message); }
void put(Bytes& out, const Credit& message) { begin(out, ControlKind::credit).put(message); }
void put(Bytes& out, const Agreement& message) {
  ByteWriter writer = begin(out, ControlKind::agreement);
  writer.put_text(message.name);
  writer.put(message.sequence);
  writer.put(message.op);
  put(out, message.plan);
  put(writer, message.rows);
  writer.put(message.settled);
  writer.put(message.step);
}
void put(Bytes& out, const Refusal& message) {
  ByteWriter writer = begin(out, ControlKind::refusal);
  writer.put_text(message.name);
  writer.put(message.sequence);
  writer.put(message.status);
  writer.put_text(message.text);
  put(writer, message.facts);
}
void put(Bytes& out, const SubmitForJoined& message) {
  ByteWriter writer = begin(out, ControlKind::submit_for_joined);
  writer.put(message.refused);
  writer.put_text(message.name);
  writer.put(message.sequence);
  put(out, message.signature);
}
void put(Bytes& out, const Links& message) {
  begin(out, ControlKind::links);
  out.insert(out.end(), message.bytes.begin(), message.bytes.end());
}
void put(Bytes& out, const Costs& message) {
  begin(out, ControlKind::costs);
  out.insert(out.end(), message.bytes.begin(), message.bytes.end());
}
void put(Bytes& out, const Abort& message) {
  ByteWriter writer = begin(out, ControlKind::abort);
  writer.put(message.status);
  writer.put_text(message.text);
  writer.put(message.left);
  put(writer, message.facts);
}
void put_plain(Bytes& out, ControlKind kind) { begin(out, kind); }

Request get_request(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::request);
  const auto settled = reader.get<Settled>();
  const auto step = reader.get<std::uint32_t>();
  const auto evictions = reader.get<std::uint32_t>();
  auto splits = get_rows(reader);
  Request request = get_definition(reader.take(reader.left()));
  request.settled = settled;
  request.step = step;
  request.evictions = evictions;
  request.splits = std::move(splits);
  return request;
}
Ready get_ready(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::ready);
  Ready ready;
  ready.sequence = reader.get<std::uint32_t>();
  ready.wants_start = reader.get<std::uint32_t>();
  ready.settled = reader.get<Settled>();
  ready.step = reader.get<std::uint32_t>();
  ready.by_lane = reader.get<bool>();
  ready.ops = OpSet::get(reader);
  return ready;
}
Start get_start(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::start);
  Start start;
  start.sequence = reader.get<std::uint32_t>();
  start.settled = reader.get<Settled>();
  start.step = reader.get<std::uint32_t>();
  start.by_lane = reader.get<bool>();
  start.ops = OpSet::get(reader);
  return start;
}
Moves get_moves(std::span<const std::byte> message) { return expect(message, ControlKind::moves).get<Moves>(); }
Credit get_credit(std::span<const std::byte> message) { return expect(message, ControlKind::credit).get<Credit>(); }
Agreement get_agreement(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::agreement);
  Agreement agreement;
  agreement.name = reader.get_text();
  agreement.sequence = reader.get<std::uint32_t>();
  agreement.op = reader.get<std::uint32_t>();
  agreement.plan = get_plan(reader);
  agreement.rows = get_rows(reader);
  agreement.settled = reader.get<Settled>();
  agreement.step = reader.get<std::uint32_t>();
  return agreement;
}
Refusal get_refusal(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::refusal);
  Refusal refusal;
  refusal.name = reader.get_text();
  refusal.sequence = reader.get<std::uint32_t>();
  refusal.status = get_failure(reader);
  refusal.text = reader.get_text();
  refusal.facts = get_facts(reader);
  return refusal;
}
SubmitForJoined get_submit_for_joined(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::submit_for_joined);
  const auto refused = reader.get<std::uint8_t>();
  if (refused > 1) throw CorruptPayload("a stand-in that is neither wanted nor refused");
  SubmitForJoined wanted;
  wanted.refused = refused == 1;
  wanted.name = reader.get_text();
  wanted.sequence = reader.get<std::uint32_t>();
  wanted.signature = get_signature(reader);
  return wanted;
}
Links get_links(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::links);
  const auto bytes = reader.take(reader.left());
  return {{bytes.begin(), bytes.end()}};
}
Costs get_costs(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::costs);
  const auto bytes = reader.take(reader.left());
  return {{bytes.begin(), bytes.end()}};
}
Abort get_abort(std::span<const std::byte> message) {
  ByteReader reader = expect(message, ControlKind::abort);
  Abort abort;
  abort.status = get_failure(reader);
  abort.text = reader.get_text();
  abort.left = reader.get<bool>();
  abort.facts = get_facts(reader);
  return abort;
}

}  // namespace casync
