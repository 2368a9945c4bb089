#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/local_policy.hpp"
#include "engine/engine.hpp"

namespace casync::test {

/// An Engine of one member whose effects succeed at once; the other members are played by the test.
class Played : private ActionSink {
 public:
  struct Seen {
    std::string name;  ///< "begin", "control"
    Rank peer = 0;
    Bytes message{};
    std::optional<Abort> failure{};
    std::uint32_t op = 0;  ///< that begins
  };

  Played(std::uint32_t member, std::uint32_t members, std::size_t eager_bytes, OpKind kind = OpKind::allreduce,
         std::int64_t numel = 4, std::size_t pool_bytes = EngineOptions{}.pool_bytes)
      : engine_(options(member, members, eager_bytes, pool_bytes),
                std::make_unique<LocalPolicy>(member, members, LocalPolicy::Options{})) {
    define("w", kind, numel);
  }

  void define(const std::string& name, OpKind kind = OpKind::allreduce, std::int64_t numel = 4,
              std::int32_t priority = 0) {
    Request definition{name, 0, signature(numel), "here"};
    definition.signature.kind = kind;
    definition.signature.priority = priority;
    apply(event::Define{definitions_++, definition});
  }

  static Signature signature(std::int64_t numel = 4, std::int32_t priority = 0) {
    Signature signature;
    signature.shape = {numel, 1};
    signature.compression = "none";
    signature.topology = "auto";
    signature.priority = priority;
    return signature;
  }

  void submit(std::int64_t rows = 0, std::uint32_t registration = 0, bool decides = true) {
    apply(event::Submit{.registration = registration, .handle = ++handle_, .rows = rows}, decides);
  }
  void submit_splits(const std::vector<std::int64_t>& splits) {
    apply(event::Submit{.handle = ++handle_, .splits = splits});
  }
  /// `decides`: with it a batch of events ends.
  template <typename Message>
  void control(Rank peer, const Message& message, bool decides = true) {
    Bytes bytes;
    put(bytes, message);
    apply(event::Control{peer, bytes}, decides);
  }
  void plans_changed() { apply(event::PlansChanged{}); }
  void control_bytes(Rank peer, const Bytes& bytes) { apply(event::Control{peer, bytes}); }
  void plain(Rank peer, ControlKind kind) {
    Bytes bytes;
    put_plain(bytes, kind);
    apply(event::Control{peer, bytes});
  }
  /// The contribution of `peer` to run `sequence` of `op`.
  void arrive(Rank peer, std::uint32_t sequence, std::uint32_t op = 0) {
    apply(event::Arrived{peer, {.op = op, .sequence = sequence, .tag = 0}, ++message_id_});
  }
  std::optional<Nanoseconds> wakes_in() const {
    const auto at = engine_.wakes_at();
    return at ? std::optional(*at - now_) : std::nullopt;
  }
  void shutdown() { apply(event::Shutdown{}); }
  void pass(Nanoseconds time) {
    now_ += time;
    engine_.decide(now_, *this);
  }
  /// From now on workers keep their tasks, until one is given back, done or failed.
  void hold() { holds_ = true; }
  /// `failure` of status ok: there is none.
  void give_back(const Abort& failure = {Status::ok, {}}) {
    event::Ran ran = held_.back();
    held_.pop_back();
    if (failure.status != Status::ok) ran.failure = &failure;
    apply(ran);
  }
  /// From now on the planning takes its time, until it answers.
  void keep_plans() { keeps_plans_ = true; }
  void answer() {
    const auto plans = std::exchange(plans_, {});
    apply(event::Planned{plans});
  }
  /// The first run, on everybody's request.
  void first_run(std::uint32_t member, std::uint32_t members) {
    submit();
    for (Rank peer = 0; peer < members; ++peer) {
      if (member == 0 && peer != 0) control(peer, Request{"w", 0, signature(), "there"});
    }
    if (member != 0) control(0, Agreement{"w", 0, 0, {}, {}});
    for (Rank peer = 0; peer < members; ++peer) {
      if (peer != member) arrive(peer, 0);
    }
  }

  std::size_t count(const std::string& name) const {
    return static_cast<std::size_t>(std::ranges::count(seen, name, &Seen::name));
  }
  std::vector<Status> finished() const {
    std::vector<Status> list;
    for (const Seen& one : seen) {
      if (one.name == "finish") list.push_back(one.failure ? one.failure->status : Status::ok);
    }
    return list;
  }
  std::vector<std::uint32_t> begun() const {
    std::vector<std::uint32_t> ops;
    for (const Seen& one : seen) {
      if (one.name == "begin") ops.push_back(one.op);
    }
    return ops;
  }
  std::vector<ControlKind> told(Rank peer) const {
    std::vector<ControlKind> list;
    for (const Seen& one : seen) {
      if (one.name == "control" && one.peer == peer) list.push_back(kind_of(one.message));
    }
    return list;
  }

  /// What `peer` was told to be ready, or that it may begin.
  template <typename Message>
  std::vector<Message> said(Rank peer, ControlKind kind, Message (*get)(std::span<const std::byte>)) const {
    std::vector<Message> list;
    for (const Seen& one : seen) {
      if (one.name == "control" && one.peer == peer && kind_of(one.message) == kind) list.push_back(get(one.message));
    }
    return list;
  }

  std::vector<Seen> seen;

 private:
  static EngineOptions options(std::uint32_t member, std::uint32_t members, std::size_t eager_bytes,
                               std::size_t pool_bytes) {
    EngineOptions options;
    options.member = member;
    for (std::uint32_t m = 0; m < members; ++m) options.host_of.push_back(m);
    options.eager_bytes = eager_bytes;
    options.pool_bytes = pool_bytes;
    return options;
  }

  void apply(const Event& event, bool decides = true) {
    engine_.apply(event, now_, *this);
    if (!decides) return;
    engine_.decide(now_, *this);
    if (!plans_.empty() && !keeps_plans_) answer();
    while (!follow_.empty()) {
      const Event next = follow_.front();
      follow_.pop_front();
      engine_.apply(next, now_, *this);
      if (follow_.empty()) engine_.decide(now_, *this);
    }
  }
  void emit(const Action& action) override {
    const std::string text = describe(action);
    Seen one{text.substr(0, text.find(' '))};
    if (const auto* control = std::get_if<action::Control>(&action)) {
      one.peer = control->peer;
      one.message.assign(control->message.begin(), control->message.end());
    }
    if (const auto* finish = std::get_if<action::Finish>(&action); finish != nullptr && finish->failure != nullptr) {
      one.failure = *finish->failure;
    }
    if (const auto* begin = std::get_if<action::Begin>(&action)) one.op = begin->op;
    seen.push_back(std::move(one));
    if (const auto* wanted = std::get_if<action::PlanWanted>(&action)) {
      for (const auto& gradient : wanted->gradients) plans_.push_back({gradient.op, GradientPlan{}});
    }
    if (const auto* run = std::get_if<action::Run>(&action)) {
      for (const auto& [instance, task] : run->batch) {
        const event::Ran ran{instance, task};
        if (holds_) {
          held_.push_back(ran);
        } else {
          follow_.emplace_back(ran);
        }
      }
    }
    if (const auto* send = std::get_if<action::Send>(&action)) {
      follow_.emplace_back(event::Sent{send->instance, send->task});
    }
    if (const auto* accept = std::get_if<action::Accept>(&action)) {
      follow_.emplace_back(event::Received{accept->instance, accept->task});
    }
  }

  std::uint32_t definitions_ = 0;
  std::uint32_t handle_ = 0;
  std::uint64_t message_id_ = 0;
  std::deque<Event> follow_;
  bool keeps_plans_ = false;
  std::vector<event::Planned::Plan> plans_;
  bool holds_ = false;
  std::vector<event::Ran> held_;
  Nanoseconds now_ = 0;
  Engine engine_;
};

}  // namespace casync::test
