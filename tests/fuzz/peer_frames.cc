#include "peer_frames.hpp"

#include <limits>
#include <string>

#include "casync/route.hpp"
#include "common/crc32c.hpp"
#include "common/hash.hpp"
#include "common/wire.hpp"
#include "engine/control.hpp"
#include "executor/frames/frame.hpp"
#include "planner/cost/measurements.hpp"

namespace casync::fuzz {
namespace {

std::string text_from(Input& input) { return std::string(text_of(input.take(input.get<std::uint8_t>()))); }

Settled settled_from(Input& input, const Tensor& tensor) { return input.flag() ? settled_by(tensor.compression) : 0; }

constexpr std::array<std::int64_t, 4> kRows{4, 100, -1, std::numeric_limits<std::int64_t>::max() / 1000};

std::vector<std::int64_t> rows_from(Input& input) {
  std::vector<std::int64_t> rows;
  for (std::size_t m = input.below(5); m > 0; --m) rows.push_back(input.flag() ? 2 : kRows[input.below(kRows.size())]);
  return rows;
}

Agreement agreement_from(Input& input, const Tensor& tensor, std::uint32_t op, std::uint32_t sequence) {
  Agreement agreement{tensor.name, sequence, op, {}, {}};
  agreement.plan.topology = route_names()[input.below(4)];
  agreement.plan.codec = input.flag() ? tensor.compression : text_from(input);
  agreement.plan.partitions =
      input.flag() ? 1 + static_cast<std::uint32_t>(input.below(8)) : input.get<std::uint32_t>();
  agreement.plan.first_owner = input.get<std::uint8_t>();
  agreement.plan.until = static_cast<std::uint32_t>(input.below(3));
  agreement.settled = settled_from(input, tensor);
  agreement.step = sequence;
  agreement.rows = rows_from(input);
  return agreement;
}

/// A control message as some peer might send it, with fields that need not fit.
Bytes control_from(Input& input) {
  const Tensor& tensor = kTensors[input.below(kTensorCount)];
  const auto op = static_cast<std::uint32_t>(input.below(16));
  const auto sequence = static_cast<std::uint32_t>(input.below(4));
  Bytes message;
  switch (input.below(12)) {
    case 0: {
      Request request{tensor.name, sequence, definition_of(tensor).signature, "a peer", settled_from(input, tensor),
                      sequence};
      if (tensor.kind == OpKind::alltoall) request.splits = rows_from(input);
      put(message, request);
      break;
    }
    case 1:
      put(message,
          Ready{{op}, sequence, static_cast<std::uint32_t>(input.below(2)), settled_from(input, tensor), sequence});
      break;
    case 2:
      put(message, agreement_from(input, tensor, op, sequence));
      break;
    case 3:
      put(message, Start{{op}, sequence, settled_from(input, tensor), sequence});
      break;
    case 4:
      put(message, Refusal{tensor.name, sequence, static_cast<Status>(1 + input.below(6)), text_from(input)});
      break;
    case 5:
      put(message, Credit{input.flag() ? input.below(64) : input.get<std::uint64_t>()});
      break;
    case 6:
      put_plain(message, static_cast<ControlKind>(input.below(13)));
      break;
    case 7:
      put(message, Costs{{}});
      put(message,
          MeasuredCosts{{input.get<double>(), input.get<double>(), {}},
                        {{}, input.get<double>(), input.get<double>()},
                        input.get<double>(),
                        {{tensor.compression, {0, 1e-9, 0, 1e-9}}},
                        {{tensor.compression, {0, 1e-9, 0, 1e-9}}},
                        {{"gradient", {4e6, {{tensor.compression, input.get<double>()}}, input.get<double>()}}},
                        {input.get<std::uint64_t>(), input.get<std::uint32_t>()}});
      break;
    case 8:
      put(message, Abort{static_cast<Status>(1 + input.below(6)), text_from(input), input.flag()});
      break;
    case 9: {
      const auto bytes = input.take(input.below(65));
      put(message, Links{{bytes.begin(), bytes.end()}});
      break;
    }
    case 10:
      put(message, SubmitForJoined{tensor.name, sequence, input.flag(), definition_of(tensor).signature});
      break;
    default: {
      const auto bytes = input.take(input.get<std::uint8_t>());
      message.assign(bytes.begin(), bytes.end());
    }
  }
  return message;
}

/// How long a message says it is: often as long as something that is expected.
std::size_t size_from(Input& input) {
  const std::size_t choice = input.below(4);
  if (choice == 0) return input.get<std::uint8_t>();
  if (choice == 1) return input.get<std::uint16_t>();
  const Tensor& tensor = kTensors[input.below(kTensorCount)];
  const std::size_t parts = 1 + input.below(4);
  const auto raw = static_cast<std::size_t>(tensor.shape.numel()) * size_of(tensor.dtype) / parts;
  return choice == 2 ? raw : raw / 32 + input.get<std::uint8_t>();
}

/// `size` bytes that repeat `content`.
Bytes repeated(const Bytes& content, std::size_t size) {
  Bytes all(size);
  for (std::size_t i = 0; i < size && !content.empty(); ++i) all[i] = content[i % content.size()];
  return all;
}

void add_message(Input& input, FrameWriter& frame, std::deque<Bytes>& bodies) {
  FrameEntry entry;
  entry.kind = static_cast<EntryKind>(1 + input.below(4));
  entry.key = {static_cast<std::uint32_t>(input.below(16)), static_cast<std::uint32_t>(input.below(4)),
               static_cast<std::uint32_t>(input.below(32))};
  entry.size = size_from(input);
  const auto some = input.take(input.get<std::uint8_t>());
  const Bytes content(some.begin(), some.end());
  Bytes follows;
  if (entry.kind == EntryKind::raw || entry.kind == EntryKind::encoded) {
    entry.size = std::min(entry.size, kInlineBytes);
    follows = repeated(content, entry.size);
  } else {
    bodies.push_back(content);
  }
  if (entry.kind == EntryKind::encoded_body) {
    const std::uint32_t sum = crc32c(repeated(content, entry.size));
    const auto bytes = std::as_bytes(std::span(&sum, 1));
    follows.assign(bytes.begin(), bytes.end());
  }
  if (input.below(16) == 1) entry.kind = static_cast<EntryKind>(input.below(8));
  // A length between these two would be a matter of how much memory this machine has.
  if (input.below(16) == 1) entry.size = ~std::uint64_t{0} - entry.size;
  if (input.below(16) == 1) follows.resize(input.get<std::uint8_t>());
  if (frame.has_room(follows.size())) frame.append(entry, follows);
}

}  // namespace

Definition definition_of(const Tensor& tensor) {
  Signature signature;
  signature.kind = tensor.kind;
  signature.dtype = tensor.dtype;
  signature.shape = tensor.shape;
  signature.compression = tensor.compression;
  signature.topology = "auto";
  return {tensor.name, signature, hash_text(tensor.name)};
}

PeerFrame frame_from(Input& input) {
  PeerFrame made;
  FrameWriter frame(kSession, kHeadBytes);
  for (std::size_t entries = 1 + input.below(3); entries > 0; --entries) {
    if (input.flag()) {
      const Bytes message = control_from(input);
      if (frame.has_room(message.size())) frame.append({.size = message.size()}, message);
    } else {
      add_message(input, frame, made.bodies);
    }
  }
  if (frame.empty()) frame.append({}, {});
  made.bytes = std::move(frame.complete());
  if (input.below(64) == 1) made.bytes.resize(made.bytes.size() * input.get<std::uint8_t>() / 256);
  return made;
}

}  // namespace casync::fuzz
