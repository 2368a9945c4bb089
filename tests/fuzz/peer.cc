// A rank whose peers send what they like: frames with the right checksum and anything in them, bodies, byes, silence,
// in any order, while this rank submits operations of every kind. Nothing may leave the driver as an exception, for it
// would end the thread that makes progress; and after a failure every operation has ended.
#include <array>
#include <deque>
#include <map>

#include "casync/error.hpp"
#include "common/crc32c.hpp"
#include "common/hash.hpp"
#include "coordinator/make_policy.hpp"
#include "executor/driver.hpp"
#include "input.hpp"
#include "planner/measured_planning.hpp"

namespace casync::fuzz {
namespace {

constexpr int kSize = 3;
constexpr std::uint32_t kSession = 7;

// As executor/framer.hpp lays out a frame.
struct FrameHeader {
  std::uint32_t magic, session, bytes, crc;
};
struct Entry {
  std::uint32_t kind, bytes, op, sequence, tag, crc;
  std::uint64_t size;
};
constexpr std::uint32_t kMagic = 0x43615331, kControl = 0, kHere = 1, kBody = 2, kCheckedBody = 3;

/// Keeps what is to be received, and takes what is sent for sent.
class Wire final : public Transport {
 public:
  explicit Wire(int rank) : rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return kSize; }
  std::size_t head_bytes() const override { return 8192; }
  void send_head(int /*peer*/, std::vector<std::byte>&& head) override {
    require(head.size() <= head_bytes(), "a head has at most head_bytes()");
  }
  void send_body(int /*peer*/, std::span<const std::byte> /*body*/, std::uint64_t id) override { sent_.push_back(id); }
  void accept(int peer, std::span<std::byte> body, std::uint64_t id) override { accepted_.push_back({peer, body, id}); }
  bool poll(TransportSink& sink) override {
    const auto news = std::exchange(news_, {});
    for (const auto& one : news) one(sink);
    return !news.empty();
  }
  bool moving() const override { return false; }
  void wait(Nanoseconds /*timeout*/) override {}
  void wake() override {}
  bool wakes() const override { return true; }
  const TransportCounters& counters() const override { return counters_; }
  void flush(Nanoseconds /*timeout*/) override {}
  void close() override {}

  void head(int peer, Bytes bytes) {
    news_.emplace_back([peer, bytes = std::move(bytes)](TransportSink& sink) { sink.on_head(peer, bytes); });
  }
  /// The bytes of the body that `peer` has to send next, if one is accepted.
  void body(int peer, std::span<const std::byte> content) {
    const auto at = std::find_if(accepted_.begin(), accepted_.end(), [&](const auto& one) { return one.peer == peer; });
    if (at == accepted_.end()) return;
    for (std::size_t i = 0; i < at->memory.size() && !content.empty(); ++i) at->memory[i] = content[i % content.size()];
    news_.emplace_back([id = at->id](TransportSink& sink) { sink.on_body(id); });
    accepted_.erase(at);
  }
  void all_sent() {
    for (const std::uint64_t id : std::exchange(sent_, {})) {
      news_.emplace_back([id](TransportSink& sink) { sink.on_sent(id); });
    }
  }
  void down(int peer) {
    if (std::exchange(down_[static_cast<std::size_t>(peer)], true)) return;
    std::erase_if(accepted_, [&](const auto& one) { return one.peer == peer; });
    news_.emplace_back([peer](TransportSink& sink) { sink.on_peer_down(peer, "it fell silent"); });
  }

 private:
  struct Accepted {
    int peer;
    std::span<std::byte> memory;
    std::uint64_t id;
  };
  int rank_;
  std::vector<std::function<void(TransportSink&)>> news_;
  std::deque<Accepted> accepted_;
  std::vector<std::uint64_t> sent_;
  std::array<bool, kSize> down_{};
  TransportCounters counters_;
};

/// Computes when told to. What a codec costs here is not asked: it takes its time, and no peer's bytes come into it.
class Processor final : public Workers {
 public:
  void run(std::vector<std::unique_ptr<Job>> batch) override {
    for (auto& job : batch) jobs_.push_back(std::move(job));
  }
  void compute(Driver& driver) {
    for (auto& job : std::exchange(jobs_, {})) {
      std::string error = job->trial == nullptr ? job->run() : std::string();
      driver.finished(std::move(job), std::move(error));
    }
  }
  bool idle() const { return jobs_.empty(); }

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
};

struct Tensor {
  const char* name;
  OpKind kind;
  DType dtype;
  Shape shape;
  const char* compression;
};
constexpr Tensor kTensors[] = {
    {"none", OpKind::allreduce, DType::float32, {100, 3}, "none"},
    {"large", OpKind::allreduce, DType::float16, {9'000, 1}, "none"},
    {"onebit", OpKind::allreduce, DType::float32, {30, 1'000}, "onebit"},
    {"state", OpKind::allreduce, DType::float32, {8'000, 1}, "test_state(gather=0)"},
    {"sparse", OpKind::allreduce, DType::float32, {6'000, 1}, "dgc(ratio=0.2)"},
    {"matrix", OpKind::allreduce, DType::float32, {60, 100}, "powersgd(rank=2, start_step=0)"},
    {"topk", OpKind::allreduce, DType::float32, {20'000, 1}, "test_topk(ratio=0.2)"},
    {"rounds", OpKind::allreduce, DType::float64, {20'000, 1}, "test_tworound"},
    {"auto", OpKind::allreduce, DType::float32, {6'000, 1}, "auto(fp16, terngrad(bits=4))"},
    {"whole", OpKind::allreduce, DType::int32, {50, 1}, "none"},
    {"gather", OpKind::allgather, DType::float32, {4, 500}, "none"},
    {"broadcast", OpKind::broadcast, DType::uint8, {9'000, 1}, "none"},
    {"barrier", OpKind::barrier, DType::uint8, {0, 1}, "none"},
};
constexpr std::size_t kTensorCount = std::size(kTensors);

Definition definition_of(const Tensor& tensor) {
  Signature signature;
  signature.kind = tensor.kind;
  signature.dtype = tensor.dtype;
  signature.shape = tensor.shape;
  signature.compression = tensor.compression;
  signature.topology = "auto";
  return {tensor.name, signature, hash_text(tensor.name)};
}

class Rank {
 public:
  Rank(int rank, const std::string& coordinator)
      : wire_(rank),
        engine_(options(rank), make_policy(coordinator, static_cast<std::uint16_t>(rank), kSize), plans()) {
    Driver::Options options;
    options.session_tag = kSession;
    options.inline_bytes = 4096;
    driver_.emplace(engine_, wire_, processor_, options,
                    Driver::Callbacks{.finished = [this](Operation& operation) { ended(operation); },
                                      .report = [](const std::string&) {},
                                      .stand_in = [](const Request&) {}});  // nobody joins here
    for (std::size_t t = 0; t < kTensorCount; ++t) {
      definitions_[t] = definition_of(kTensors[t]);
      const std::size_t bytes =
          static_cast<std::size_t>(definitions_[t].signature.shape.numel()) * size_of(definitions_[t].signature.dtype);
      memory_[t].resize(bytes);
      operations_[t].definition = &definitions_[t];
      operations_[t].input = operations_[t].output = memory_[t].data();
      driver_->define(static_cast<std::uint32_t>(t), {definitions_[t].name, 0, definitions_[t].signature, "peer.cc"});
    }
  }

  void submit(std::size_t tensor) {
    if (std::exchange(outstanding_[tensor], true)) return;
    operations_[tensor].status = Status::ok;
    operations_[tensor].text.clear();
    operations_[tensor].rows = definitions_[tensor].signature.kind == OpKind::allgather ? 4 : 0;
    driver_->submit(static_cast<std::uint32_t>(tensor), &operations_[tensor]);
  }
  void turn() {
    driver_->turn(now_ += 1'000'000);
    processor_.compute(*driver_);
    wire_.all_sent();
  }
  void pass(Nanoseconds time) { now_ += time; }
  void shutdown() { driver_->shutdown(); }
  /// A peer that is gone ends the session, and then nothing is left.
  void end() {
    for (int turns = 0; turns < 3; ++turns) turn();
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer != wire_.rank()) wire_.down(peer);
    }
    if (!engine_.failed()) driver_->abort("the input ends");
    while (!processor_.idle()) turn();
    turn();
    for (const bool outstanding : outstanding_) require(!outstanding, "a failure ends every operation");
  }
  Wire& wire() { return wire_; }

 private:
  static EngineOptions options(int rank) {
    EngineOptions options;
    options.member = static_cast<std::uint32_t>(rank);
    options.host_of = {0, 0, 1};
    options.inline_bytes = 4096;
    options.pool_bytes = 256 << 10;
    return options;
  }
  static std::unique_ptr<Planning> plans() {
    MeasuredPlanning::Options options;
    options.host_of = {0, 0, 1};
    options.warm_up = 0;
    return std::make_unique<MeasuredPlanning>(std::move(options), [](const std::string&) {});
  }
  void ended(Operation& operation) {
    const auto tensor = static_cast<std::size_t>(&operation - operations_.data());
    require(std::exchange(outstanding_[tensor], false), "an operation ends once");
  }

  Wire wire_;
  Processor processor_;
  Engine engine_;
  std::optional<Driver> driver_;
  std::array<Definition, kTensorCount> definitions_;
  std::array<Bytes, kTensorCount> memory_;
  std::array<Operation, kTensorCount> operations_;
  std::array<bool, kTensorCount> outstanding_{};
  Nanoseconds now_ = 0;
};

std::string text_from(Input& input) {
  const auto bytes = input.take(input.get<std::uint8_t>());
  return std::string(text_of(bytes));
}

/// A control message as some peer might send it, with fields that need not fit.
Bytes control_from(Input& input) {
  const Tensor& tensor = kTensors[input.below(kTensorCount)];
  const auto op = static_cast<std::uint32_t>(input.below(16));
  const auto sequence = static_cast<std::uint32_t>(input.below(4));
  const Settled settled = input.flag() ? settled_by(tensor.compression) : 0;
  Bytes message;
  switch (input.below(10)) {
    case 0:
      put(message, Request{tensor.name, sequence, definition_of(tensor).signature, "a peer", settled, sequence});
      break;
    case 1:
      put(message, Ready{op, sequence, static_cast<std::uint32_t>(input.below(2)), settled, sequence});
      break;
    case 2: {
      Verdict verdict{tensor.name, sequence, op, {}, {}};
      verdict.plan.topology = static_cast<Topology>(input.below(4));
      verdict.plan.codec = input.flag() ? tensor.compression : text_from(input);
      verdict.plan.partitions =
          input.flag() ? 1 + static_cast<std::uint32_t>(input.below(8)) : input.get<std::uint32_t>();
      verdict.plan.first_owner = input.get<std::uint8_t>();
      verdict.plan.until = static_cast<std::uint32_t>(input.below(3));
      verdict.settled = settled;
      verdict.step = sequence;
      constexpr std::array<std::int64_t, 4> kRows{4, 100, -1, std::numeric_limits<std::int64_t>::max() / 1000};
      for (std::size_t m = input.below(5); m > 0; --m) verdict.rows.push_back(kRows[input.below(kRows.size())]);
      put(message, verdict);
      break;
    }
    case 3:
      put(message, Start{op, sequence, settled, sequence});
      break;
    case 4:
      put(message, Refuse{tensor.name, sequence, static_cast<Status>(1 + input.below(6)), text_from(input)});
      break;
    case 5:
      put(message, Window{input.flag() ? input.below(64) : input.get<std::uint64_t>()});
      break;
    case 6:
      put_plain(message, static_cast<ControlKind>(input.below(12)));
      break;
    case 7:
      put(message, Costs{{}});
      put(message, MeasuredCosts{input.get<double>(), input.get<double>(), {{tensor.compression, {0, 1e-9, 0, 1e-9}}}});
      break;
    case 8:
      put(message, Abort{static_cast<Status>(1 + input.below(6)), text_from(input)});
      break;
    default: {
      const auto bytes = input.take(input.get<std::uint8_t>());
      message.assign(bytes.begin(), bytes.end());
    }
  }
  return message;
}

void append(Bytes& frame, const void* from, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  frame.insert(frame.end(), begin, begin + bytes);
}

Bytes frame_from(Input& input) {
  Bytes frame(sizeof(FrameHeader));
  for (std::size_t entries = 1 + input.below(3); entries > 0; --entries) {
    Entry entry{};
    Bytes content;
    entry.kind = static_cast<std::uint32_t>(input.below(5));
    if (entry.kind == kControl) {
      content = control_from(input);
    } else {
      entry.op = static_cast<std::uint32_t>(input.below(16));
      entry.sequence = static_cast<std::uint32_t>(input.below(4));
      entry.tag = static_cast<std::uint32_t>(input.below(32));
      entry.crc = entry.kind == kCheckedBody ? input.get<std::uint32_t>() : 0;
      const std::size_t size = input.flag() ? input.get<std::uint16_t>() : input.get<std::uint8_t>();
      if (entry.kind == kHere) {
        content.resize(std::min<std::size_t>(size, 4096));
        const auto bytes = input.take(std::min<std::size_t>(content.size(), input.get<std::uint8_t>()));
        std::copy(bytes.begin(), bytes.end(), content.begin());
      }
      // A length between these two would be a matter of how much memory this machine has.
      entry.size = entry.kind == kBody && input.below(16) == 1 ? ~std::uint64_t{0} - size : size;
    }
    entry.bytes = static_cast<std::uint32_t>(content.size());
    if (entry.kind == kControl || entry.kind == kHere) entry.size = content.size();
    append(frame, &entry, sizeof entry);
    append(frame, content.data(), content.size());
  }
  if (input.below(16) == 1) {  // anything at all, with the right checksum
    const auto bytes = input.take(input.get<std::uint8_t>());
    append(frame, bytes.data(), bytes.size());
  }
  const auto entries = std::span<const std::byte>(frame).subspan(sizeof(FrameHeader));
  const FrameHeader header{kMagic, kSession, static_cast<std::uint32_t>(entries.size()), crc32c(entries)};
  std::memcpy(frame.data(), &header, sizeof header);
  if (input.below(64) == 1) frame.resize(frame.size() * input.get<std::uint8_t>() / 256);
  return frame;
}

void test_one(Input input) {
  const int self = static_cast<int>(input.below(kSize));
  Rank rank(self, input.flag() ? "global" : "local");
  while (input.left() > 0) {
    const int peer = (self + 1 + static_cast<int>(input.below(kSize - 1))) % kSize;
    switch (input.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        rank.submit(input.below(kTensorCount));
        break;
      case 4:
      case 5:
        rank.turn();
        break;
      case 6:
        rank.wire().body(peer, input.take(input.get<std::uint8_t>()));
        break;
      case 7:
        rank.pass(input.get<std::uint32_t>());
        break;
      case 8:
        if (input.below(8) == 1) rank.wire().down(peer);
        break;
      case 9:
        if (input.below(8) == 1) rank.shutdown();
        break;
      case 10: {  // a peer's bytes as they are
        const auto bytes = input.take(input.get<std::uint8_t>());
        rank.wire().head(peer, {bytes.begin(), bytes.end()});
        break;
      }
      default:
        rank.wire().head(peer, frame_from(input));
    }
  }
  rank.end();
}

}  // namespace
}  // namespace casync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  casync::fuzz::test_one({data, size});
  return 0;
}
