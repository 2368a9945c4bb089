#include "peer_rank.hpp"

#include <utility>

#include "casync/error.hpp"
#include "common/hash.hpp"
#include "coordinator/make_policy.hpp"
#include "session/checks.hpp"

namespace casync::fuzz {
namespace {

constexpr std::size_t at(casync::Rank peer) { return peer; }

}  // namespace

void Seen::on_event(const Event& event, Nanoseconds /*now*/) {
  const auto* const control = std::get_if<event::Control>(&event);
  if (control != nullptr && !control->message.empty()) ++heard[static_cast<ControlKind>(control->message.front())];
}

// ---------------------------------------------------------------------------------------------------------------------

void Wire::send_head(casync::Rank /*peer*/, std::vector<std::byte>&& head) {
  require(head.size() <= head_bytes(), "a head has at most head_bytes()");
}

void Wire::send_body(casync::Rank /*peer*/, std::span<const std::byte> /*body*/, std::uint64_t id) {
  sent_.push_back(id);
}

void Wire::accept(casync::Rank peer, std::span<std::byte> body, std::uint64_t id) {
  accepted_.push_back({peer, body, id});
}

bool Wire::poll(TransportSink& sink) {
  const auto news = std::exchange(news_, {});
  for (const auto& one : news) one(sink);
  return !news.empty();
}

void Wire::frame(casync::Rank peer, PeerFrame frame) {
  for (Bytes& content : frame.bodies) announced_[at(peer)].push_back(std::move(content));
  head(peer, std::move(frame.bytes));
}

void Wire::head(casync::Rank peer, Bytes bytes) {
  news_.emplace_back([peer, bytes = std::move(bytes)](TransportSink& sink) { sink.on_head(peer, bytes); });
}

void Wire::body(casync::Rank peer, bool flipped) {
  const auto next = std::ranges::find(accepted_, peer, &Accepted::peer);
  if (next == accepted_.end()) return;
  const auto memory = next->memory;
  auto& announced = announced_[at(peer)];
  if (!announced.empty()) {
    const Bytes content = std::move(announced.front());
    announced.pop_front();
    for (std::size_t i = 0; i < memory.size() && !content.empty(); ++i) memory[i] = content[i % content.size()];
    if (content.empty()) std::ranges::fill(memory, std::byte{0});
  }
  if (flipped && !memory.empty()) memory.back() ^= std::byte{1};
  news_.emplace_back([id = next->id](TransportSink& sink) { sink.on_body(id); });
  accepted_.erase(next);
}

void Wire::all_sent() {
  for (const std::uint64_t id : std::exchange(sent_, {})) {
    news_.emplace_back([id](TransportSink& sink) { sink.on_sent(id); });
  }
}

void Wire::down(casync::Rank peer) {
  if (std::exchange(down_[at(peer)], true)) return;
  std::erase_if(accepted_, [&](const auto& one) { return one.peer == peer; });
  news_.emplace_back([peer](TransportSink& sink) { sink.on_peer_down(peer, "it fell silent"); });
}

// ---------------------------------------------------------------------------------------------------------------------

void Processor::run(std::vector<std::unique_ptr<Job>> batch) {
  for (auto& job : batch) jobs_.push_back(std::move(job));
}

void Processor::compute(Driver& driver) {
  for (auto& job : std::exchange(jobs_, {})) {
    std::string error = job->trial == nullptr ? job->run() : std::string();
    driver.finished(std::move(job), std::move(error));
  }
}

// ---------------------------------------------------------------------------------------------------------------------

Rank::Rank(casync::Rank rank, const std::string& coordinator, Seen& seen)
    : wire_(rank),
      engine_(options(rank), make_policy({.policy = coordinator}, static_cast<casync::Rank>(rank), kSize)),
      planning_(planning_options(), [](const LogRecord&) {}) {
  Driver::Options options;
  options.session_tag = kSession;
  options.observers = {&seen};
  driver_.emplace(engine_, wire_, Driver::ComputeBackends{processor_}, planning_, options,
                  Driver::Callbacks{.finished = [this](Operation& operation) { ended(operation); },
                                    .report = [](const Stall&) {},
                                    .stand_in = [this](const Request& wanted) { stand_in(wanted); }});
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    define(definition_of(kTensors[t]));
    const Definition& definition = definitions_.back();
    const auto numel = static_cast<std::size_t>(definition.signature.shape.numel());
    memory_[t].resize(numel * size_of(definition.signature.dtype));
    operations_[t].definition = &definition;
    operations_[t].input = operations_[t].output = memory_[t].data();
  }
  tell_definitions();
}

EngineOptions Rank::options(casync::Rank rank) {
  EngineOptions options;
  options.member = rank;
  options.host_of = {0, 0, 1};
  options.inline_bytes = kInlineBytes;
  options.pool_bytes = 256 << 10;
  return options;
}

MeasuredPlanning::Options Rank::planning_options() {
  MeasuredPlanning::Options options;
  options.host_of = {0, 0, 1};
  options.warm_up = 0;
  return options;
}

std::uint32_t Rank::define(Definition definition) {
  definitions_.push_back(std::move(definition));
  return static_cast<std::uint32_t>(definitions_.size()) - 1;
}

/// Whoever has joined submits nothing until all have.
void Rank::submit(std::size_t tensor) {
  if (outstanding_[kTensorCount - 1] || std::exchange(outstanding_[tensor], true)) return;
  Operation& operation = operations_[tensor];
  operation.status = Status::ok;
  operation.text.clear();
  const OpKind kind = operation.definition->signature.kind;
  operation.rows = kind == OpKind::allgather ? 4 : 0;
  operation.splits.assign(kind == OpKind::alltoall ? kSize : 0, 2);
  driver_->submit(static_cast<std::uint32_t>(tensor), &operation);
}

/// As a session does it: what cannot be is refused by an exception, and what can is submitted in the next turn.
void Rank::stand_in(const Request& wanted) {
  const auto same = [&](const Definition& one) { return one.name == wanted.name && one.signature == wanted.signature; };
  const auto found = std::ranges::find_if(definitions_, same);
  auto number = static_cast<std::uint32_t>(found - definitions_.begin());
  if (found == definitions_.end()) {
    check_signature(wanted.name, wanted.signature, kSize);
    MeasuredPlanning::check(planning_options(), wanted.name, wanted.signature);
    number = define({wanted.name, wanted.signature, hash_text(wanted.name)});
  }
  wanted_.emplace_back(number, &stand_ins_.add(definitions_[number]));
}

void Rank::tell_definitions() {
  for (; told_ < definitions_.size(); ++told_) {
    driver_->define(told_, {definitions_[told_].name, 0, definitions_[told_].signature, "peer.cc"});
  }
}

void Rank::turn() {
  tell_definitions();
  for (const auto& [number, operation] : std::exchange(wanted_, {})) driver_->submit(number, operation);
  driver_->turn(now_ += 1'000'000);
  processor_.compute(*driver_);
  wire_.all_sent();
}

void Rank::end() {
  for (int turns = 0; turns < 3; ++turns) turn();
  for (casync::Rank peer = 0; peer < kSize; ++peer) {
    if (peer != wire_.rank()) wire_.down(peer);
  }
  if (!engine_.failed()) driver_->abort("the input ends");
  while (!processor_.idle()) turn();
  turn();
  for (const bool outstanding : outstanding_) require(!outstanding, "a failure ends every operation");
}

void Rank::ended(Operation& operation) {
  if (operation.stands_in) {
    stand_ins_.ended(operation);
  } else if (operation.definition->signature.kind == OpKind::join) {
    stand_ins_.joined(operation);
  } else {
    end_of_program(operation);
  }
  if (const Operation* const join = stand_ins_.take_join()) end_of_program(*join);
}

void Rank::end_of_program(const Operation& operation) {
  const auto tensor = static_cast<std::size_t>(&operation - operations_.data());
  require(std::exchange(outstanding_[tensor], false), "an operation ends once");
}

// ---------------------------------------------------------------------------------------------------------------------

void play(Input input, Seen& seen) {
  const auto self = static_cast<casync::Rank>(input.below(kSize));
  Rank rank(self, input.flag() ? "global" : "local", seen);
  while (input.left() > 0) {
    const casync::Rank peer = (self + 1 + static_cast<casync::Rank>(input.below(kSize - 1))) % kSize;
    switch (input.below(16)) {
      case 0:
      case 1:
      case 2:
        rank.submit(input.below(kTensorCount));
        break;
      case 3:
      case 4:
      case 5:
        rank.turn();
        break;
      case 6:
      case 7:
        rank.wire().body(peer, input.below(16) == 1);
        break;
      case 8:
        switch (input.below(8)) {
          case 1:
            rank.wire().down(peer);
            break;
          case 2:
            rank.shutdown();
            break;
          case 3:
            rank.pass(input.get<std::uint32_t>());
            break;
          case 4: {  // a peer's bytes as they are
            const auto bytes = input.take(input.get<std::uint8_t>());
            rank.wire().head(peer, {bytes.begin(), bytes.end()});
            break;
          }
          default:
            break;
        }
        break;
      default:
        rank.wire().frame(peer, frame_from(input));
    }
  }
  rank.end();
}

}  // namespace casync::fuzz
