#include "executor/virtual/world.hpp"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <list>
#include <utility>

#include "casync/error.hpp"
#include "common/hash.hpp"
#include "coordinator/make_policy.hpp"
#include "executor/frames/frame.hpp"
#include "executor/virtual/lengths.hpp"
#include "plan/planning.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kTickInterval = 250'000'000;
constexpr Nanoseconds kNoticeOfDeath = 10'000'000;

}  // namespace

struct VirtualWorld::Member {
  enum class State : std::uint8_t { running, stopped, dead, left };
  struct Running {
    Operation operation;
    std::uint32_t step = 0;
    bool outstanding = false;
  };
  struct StandIn {
    Operation operation;
    std::vector<std::byte> memory;
  };

  /// `lanes`: this rank's end of what the lanes of devices are; null: there are none.
  Member(std::unique_ptr<Engine> made, Transport& transport, Transport* lanes, Agenda& agenda,
         const VirtualWorkers::Options& compute, std::unique_ptr<Planning> plans, const Driver::Options& options,
         Driver::Callbacks callbacks, const std::function<void()>& news)
      : engine(std::move(made)),
        workers(agenda, compute, news),
        stream(agenda, compute, news),
        lane(lanes == nullptr ? nullptr : std::make_unique<VirtualLane>(*lanes)),
        planning(std::move(plans)),
        driver(*engine, transport, {workers, nullptr, &stream, lane.get()}, *planning, options, std::move(callbacks)) {}

  State state = State::running;
  std::unique_ptr<VirtualThreads> threads;  // null: each news is a turn
  std::unique_ptr<Engine> engine;
  VirtualWorkers workers;
  VirtualStream stream;
  std::unique_ptr<VirtualLane> lane;
  std::unique_ptr<Planning> planning;
  Driver driver;
  std::deque<Running> operations;            // per tensor
  std::vector<std::uint32_t> registrations;  // likewise
  std::uint32_t defined = 0;
  Inbox inbox;
  Inbox taken;  // by a turn
  std::list<StandIn> stand_ins;
  std::list<StandIn> interrupted;  // their memory may still be touched
  Operation* joined = nullptr;     // a join that has ended but for the stand-ins
  bool turn_planned = false;
  std::optional<Nanoseconds> alarm;  ///< when a turn takes place though nothing happens
  bool missed = false;               // news came while stopped
  bool done = false;                 // the program has ended
  bool leaving = false;
  bool failed = false;
  std::uint32_t step = 0;
  std::size_t to_submit = 0;
  std::size_t to_finish = 1;      // and until the next step has begun
  int large = 0;                  // operations outstanding that are not small
  std::vector<std::size_t> left;  // per thread that waits: operations of the step that have not ended
};

/// The script's plans, as they are.
class VirtualWorld::Plans final : public Planning {
 public:
  explicit Plans(const VirtualWorld& world) : world_(world) {}
  GradientPlan plan(const std::string& name, const Signature& signature, std::uint32_t step) override {
    return world_.plan_of(name, signature, step);
  }
  std::optional<GradientPlan> re_plan(const std::string& name, const Signature& signature, const GradientPlan& current,
                                      std::uint32_t step) override {
    GradientPlan next = plan(name, signature, step);
    return next == current ? std::nullopt : std::optional(std::move(next));
  }

 private:
  const VirtualWorld& world_;
};

VirtualWorld::VirtualWorld(VirtualOptions options, VirtualScript script, VirtualProgram* program)
    : options_(std::move(options)),
      script_(std::move(script)),
      program_(program),
      agenda_(options_.seed),
      network_(
          agenda_,
          [this] {
            NetworkOptions network = options_.network;
            network.copies = !options_.sizes_only;
            return network;
          }(),
          [this](Rank rank, bool rings) { rings ? news(rank) : came_silently(rank); }),
      lanes_(agenda_, options_.network, [this](Rank rank, bool) { wake_background(rank); }) {
  const auto size = static_cast<Rank>(options_.network.host_of.size());
  std::size_t largest = 1;
  for (const VirtualTensor& tensor : script_.tensors) {
    definitions_.push_back({tensor.name, tensor.signature, hash_text(tensor.name)});
    largest =
        std::max(largest, static_cast<std::size_t>(tensor.signature.shape.numel()) * size_of(tensor.signature.dtype));
  }
  if (options_.sizes_only) nothing_.reset(new std::byte[largest]);
  Driver::Options driver = options_.driver;
  driver.checksums = !options_.sizes_only;
  options_.workers.early = !options_.sizes_only;
  for (Rank r = 0; r < size; ++r) {
    if (!options_.event_log.empty()) {
      logs_.push_back(std::make_unique<EventLog>(detail::concat(options_.event_log, '.', r), engine_options(r),
                                                 options_.coordinator));
      driver.observers = {logs_.back().get()};
    }
    auto engine = std::make_unique<Engine>(engine_options(r), make_policy(options_.coordinator, r, size));
    ranks_.push_back(std::make_unique<Member>(
        std::move(engine), network_.transport(r), script_.by_lane > 0 ? &lanes_.transport(r) : nullptr, agenda_,
        options_.workers, std::make_unique<Plans>(*this), driver,
        Driver::Callbacks{.finished = [this, r](Operation& operation) { ended(r, operation); },
                          .report = [this](const Stall& stall) { outcome_.reports.push_back(stall.text); },
                          .stand_in = [this, r](const Request& wanted) { stand_in(r, wanted); }},
        [this, r] { news(r); }));
    ranks_.back()->operations.resize(script_.tensors.size());
    for (std::size_t t = 0; t < definitions_.size(); ++t)
      ranks_.back()->operations[t].operation.definition = &definitions_[t];
    if (options_.threads) start_threads(r);
  }
}

void VirtualWorld::start_threads(Rank rank) {
  const bool alone = options_.network.host_of.size() == 1;
  ranks_[rank]->threads = std::make_unique<VirtualThreads>(
      agenda_, options_.notice, alone, options_.waiters,
      VirtualThreads::Callbacks{
          .turn = [this, rank] { return turn(rank); },
          .sleep_time = [this,
                         rank](Nanoseconds last_news) { return driver(rank).sleep_time(agenda_.now(), last_news); },
          .due = [this, rank] { return engine(rank).wakes_at(); }});
}

VirtualWorld::~VirtualWorld() = default;

EngineOptions VirtualWorld::engine_options(Rank rank) const {
  EngineOptions options = options_.engine;
  options.member = rank;
  options.host_of = options_.network.host_of;
  options.inline_bytes = std::min(options.inline_bytes, FrameWriter::room(options_.network.head_bytes));
  if (options_.sizes_only) {
    options.codecs = make_lengths;
    options.at_once_bytes = 0;  // all that computes takes its time
  }
  return options;
}

GradientPlan VirtualWorld::plan_of(const std::string& name, const Signature& signature, std::uint32_t step) const {
  const VirtualTensor* found = nullptr;
  for (const VirtualTensor& tensor : script_.tensors) {
    if (tensor.name == name && (found == nullptr || tensor.signature == signature)) found = &tensor;
  }
  CASYNC_CHECK(found != nullptr, "no plan for tensor ", name);
  return found->then && is_over(found->plan, step) ? *found->then : found->plan;
}

Driver& VirtualWorld::driver(Rank rank) { return ranks_[rank]->driver; }
const Engine& VirtualWorld::engine(Rank rank) const { return *ranks_[rank]->engine; }
bool VirtualWorld::alive(Rank rank) const { return ranks_[rank]->state != Member::State::dead; }

const GradientState* VirtualWorld::kept(Rank rank, const std::string& name) {
  GradientState* const kept = driver(rank).memory().store().find(name);
  if (kept != nullptr) kept->come_home();
  return kept;
}

VirtualOutcome VirtualWorld::run() {
  outcome_.step_ends.assign(script_.steps.size(), 0);
  for (std::size_t f = 0; f < script_.faults.size(); ++f) {
    if (script_.faults[f].kind == Fault::Kind::resume) ++resumes_;
    agenda_.at(script_.faults[f].at, *this, kFault, f);
  }
  for (Rank r = 0; r < ranks_.size(); ++r) {
    ranks_[r]->registrations.resize(script_.tensors.size());
    for (std::uint32_t t = 0; t < script_.tensors.size(); ++t) define(r, t);
    agenda_.at(0, *this, kStep, r);
    if (options_.ticks && !options_.threads) agenda_.at(agenda_.up_to(kTickInterval), *this, kTick, r);
  }
  const auto anyone_needed = [&] {
    for (Rank r = 0; r < ranks_.size(); ++r) {
      if (needed(r)) return true;
    }
    return false;
  };
  while (anyone_needed()) {
    if (!agenda_.next() || agenda_.now() > last_end_ + options_.patience) {
      outcome_.hung = true;
      outcome_.waiting = waiting();
      break;
    }
  }
  for (const auto& rank : ranks_) {
    if (rank->threads != nullptr) outcome_.delays.take_longer(rank->threads->delays());
  }
  return outcome_;
}

/// Must `rank` still get somewhere before the world may end?
bool VirtualWorld::needed(Rank rank) const {
  const Member& who = *ranks_[rank];
  if (who.state == Member::State::dead || who.state == Member::State::left) return false;
  if (who.state == Member::State::stopped && resumes_ == 0) return false;
  return !who.done || who.leaving;
}

std::string VirtualWorld::waiting() const {
  std::string text = detail::concat("at ", static_cast<double>(agenda_.now()) * 1e-9, " s");
  for (Rank r = 0; r < ranks_.size(); ++r) {
    if (!needed(r)) continue;
    text += detail::concat("\n  rank ", r, " in step ", ranks_[r]->step, " waits for");
    for (const Member::Running& running : ranks_[r]->operations) {
      if (running.outstanding) text += detail::concat(' ', running.operation.definition->name);
    }
  }
  return text;
}

void VirtualWorld::happen(std::uint32_t what, std::uint64_t value) {
  if (what == kFault) {
    fault(script_.faults[value]);
    return;
  }
  const auto rank = static_cast<Rank>(value & 0xffffffffU);
  Member& who = *ranks_[rank];
  if (who.state == Member::State::dead || who.state == Member::State::left) return;
  switch (what) {
    case kTurn:
      turn(rank);
      break;
    case kAlarm:
      if (who.alarm == agenda_.now()) turn(rank);
      break;
    case kStep:
      begin_step(rank);
      break;
    case kSubmit: {
      const auto tensor = static_cast<std::uint32_t>(value >> 32U);
      if (who.threads == nullptr) {
        submit(rank, tensor);
      } else {
        who.threads->program([this, rank, tensor] { submit(rank, tensor); });
      }
      break;
    }
    case kTick:
      news(rank);
      agenda_.at(agenda_.now() + kTickInterval, *this, kTick, value);
      break;
    case kLeave:
      if (who.state == Member::State::stopped) {
        agenda_.at(agenda_.now() + kTickInterval, *this, kLeave, value);
        break;
      }
      turn(rank);
      who.driver.shutdown();
      who.driver.turn(agenda_.now());
      who.state = Member::State::left;
      if (who.threads != nullptr) who.threads->stop();
      network_.close(rank);
      break;
    default:
      CASYNC_CHECK(false, what);
  }
}

void VirtualWorld::news(Rank rank) {
  Member& who = *ranks_[rank];
  if (who.threads != nullptr) return who.threads->rung();
  if (who.turn_planned) return;
  if (who.state == Member::State::stopped) {
    who.missed = true;
    return;
  }
  who.turn_planned = true;
  agenda_.at(agenda_.now() + agenda_.up_to(options_.notice), *this, kTurn, static_cast<std::uint64_t>(rank));
}

/// Without threads every rank is told at once of whatever has come.
void VirtualWorld::came_silently(Rank rank) {
  Member& who = *ranks_[rank];
  if (who.threads == nullptr) return news(rank);
  who.threads->came_silently();
}

bool VirtualWorld::turn(Rank rank) {
  Member& who = *ranks_[rank];
  who.turn_planned = false;
  if (who.state == Member::State::stopped) {
    who.missed = true;
    return false;
  }
  ++outcome_.turns;
  std::swap(who.taken, who.inbox);
  who.workers.collect(who.taken.jobs);
  who.stream.collect(who.taken.jobs);
  const bool news = who.driver.turn(who.taken, agenda_.now());
  if (who.threads == nullptr) set_alarm(rank);
  check_step(rank);
  return news;
}

void VirtualWorld::set_alarm(Rank rank) {
  Member& who = *ranks_[rank];
  const auto wakes_at = who.engine->wakes_at();
  if (who.alarm <= agenda_.now()) who.alarm.reset();
  if (wakes_at && (!who.alarm || *wakes_at < *who.alarm)) {
    who.alarm = std::max(*wakes_at, agenda_.now());
    agenda_.at(*who.alarm, *this, kAlarm, static_cast<std::uint64_t>(rank));
  }
}

void VirtualWorld::define(Rank rank, std::uint32_t tensor) {
  Member& who = *ranks_[rank];
  const auto& [name, signature, plan, then] = script_.tensors[tensor];
  who.registrations[tensor] = who.defined++;
  who.driver.define(who.registrations[tensor], {name, 0, signature, detail::concat("rank ", rank)});
}

bool VirtualWorld::chance(double share) {
  return share > 0 && static_cast<double>(agenda_.random() >> 11U) * 0x1.0p-53 < share;
}

void VirtualWorld::submit(Rank rank, std::uint32_t tensor) {
  Member& who = *ranks_[rank];
  if (chance(script_.forgets)) {
    who.driver.forget(who.registrations[tensor], definitions_[tensor]);
    define(rank, tensor);
  }
  Member::Running& running = who.operations[tensor];
  running.step = who.step;
  running.outstanding = true;
  Operation& operation = running.operation;
  operation.status = Status::ok;
  const bool reduces_all = operation.definition->signature.kind == OpKind::allreduce;
  operation.on_stream = reduces_all && !script_.on_stream.empty() && script_.on_stream[rank];
  operation.fetched = false;
  operation.by_lane = operation.on_stream && may_go_by_lane(rank, tensor);
  if (options_.sizes_only) {
    operation.input = operation.output = nothing_.get();
  } else {
    const auto buffers = program_->buffers(rank, who.step, tensor);
    operation.input = buffers.input;
    operation.output = buffers.output;
  }
  for (const Submission& submission : script_.steps[who.step][rank]) {
    if (submission.tensor != tensor) continue;
    operation.rows = submission.rows;
    operation.splits = submission.splits;
  }
  who.inbox.submit(who.registrations[tensor], &operation);
  --who.to_submit;
  if (!is_small_there(operation)) ++who.large;
  if (who.threads == nullptr) return news(rank);
  who.threads->submitted(who.large == 0);
  for (std::size_t waiter = 0; who.to_submit == 0 && waiter < who.left.size(); ++waiter) {
    if (who.left[waiter] > 0) who.threads->waits(waiter);
  }
}

bool VirtualWorld::may_go_by_lane(Rank rank, std::uint32_t tensor) {
  if (ranks_[rank]->lane == nullptr || !ranks_[rank]->lane->ready()) return false;
  const auto graph = engine(rank).graph_of(ranks_[rank]->registrations[tensor]);
  if (graph == nullptr || !ranks_[rank]->stream.supports(*graph, script_.tensors[tensor].signature, true)) return false;
  return chance(script_.by_lane);
}

bool VirtualWorld::is_small_there(const Operation& operation) const {
  const Signature& signature = operation.definition->signature;
  const std::size_t bytes = static_cast<std::size_t>(signature.shape.numel()) * size_of(signature.dtype);
  return is_small(signature.kind, bytes, ranks_.front()->engine->inline_bytes());
}

void VirtualWorld::begin_step(Rank rank) {
  Member& who = *ranks_[rank];
  const auto r = rank;
  if (who.step == script_.steps.size() || who.failed) {
    who.done = true;
    if (who.step == script_.steps.size() && !script_.leave_after.empty() && script_.leave_after[r] >= 0) {
      who.leaving = true;
      agenda_.at(agenda_.now() + script_.leave_after[r], *this, kLeave, r);
    }
    return;
  }
  const auto& submissions = script_.steps[who.step][r];
  who.to_submit = who.to_finish = submissions.size();
  who.left.assign(options_.waiters, 0);
  for (const Submission& submission : submissions) ++who.left[submission.tensor % options_.waiters];
  for (const Submission& submission : submissions) {
    agenda_.at(agenda_.now() + submission.after, *this, kSubmit,
               (static_cast<std::uint64_t>(submission.tensor) << 32U) | r);
  }
  check_step(rank);
}

void VirtualWorld::ended(Rank rank, Operation& operation) {
  Member& who = *ranks_[rank];
  if (operation.stands_in) {
    const auto at = std::ranges::find(who.stand_ins, &operation, [](const auto& one) { return &one.operation; });
    who.interrupted.splice(who.interrupted.end(), who.stand_ins, at);
    if (operation.status == Status::ok) who.interrupted.pop_back();
    if (who.joined == nullptr || !who.stand_ins.empty()) return;
    ended(rank, *std::exchange(who.joined, nullptr));
    return;
  }
  if (operation.definition->signature.kind == OpKind::join && !who.stand_ins.empty()) {
    who.joined = &operation;
    return;
  }
  const auto tensor = static_cast<std::uint32_t>(operation.definition - definitions_.data());
  Member::Running& running = who.operations[tensor];
  CASYNC_CHECK(running.outstanding, "tensor ", operation.definition->name, " ended twice on rank ", rank);
  running.outstanding = false;
  last_end_ = agenda_.now();
  --who.to_finish;
  if (who.threads != nullptr && --who.left[tensor % options_.waiters] == 0 && who.to_submit == 0)
    who.threads->is_done(tensor % options_.waiters);
  if (!is_small_there(operation)) --who.large;
  if (operation.status != Status::ok && operation.status != Status::mismatch) who.failed = true;
  if (program_ != nullptr) program_->ended(rank, running.step, tensor, operation);
}

void VirtualWorld::stand_in(Rank rank, const Request& wanted) {
  Member& who = *ranks_[rank];
  const auto is_it = [&](const Definition& one) {
    return one.name == wanted.name && one.signature == wanted.signature;
  };
  const auto at = std::ranges::find_if(definitions_, is_it);
  CASYNC_CHECK(at != definitions_.end(), "rank ", rank, " is to stand in for tensor ", wanted.name);
  Member::StandIn& one = who.stand_ins.emplace_back();
  one.operation.definition = &*at;
  one.operation.stands_in = true;
  if (options_.sizes_only) {
    one.operation.input = one.operation.output = nothing_.get();
  } else {
    one.memory.resize(static_cast<std::size_t>(wanted.signature.shape.numel()) * size_of(wanted.signature.dtype));
    one.operation.input = one.operation.output = one.memory.data();
  }
  who.inbox.submit(who.registrations[static_cast<std::size_t>(at - definitions_.begin())], &one.operation);
  if (who.threads == nullptr) news(rank);
}

/// What has come needs a turn, whoever makes progress.
void VirtualWorld::wake_background(Rank rank) {
  Member& who = *ranks_[rank];
  if (who.threads == nullptr) return news(rank);
  who.threads->wake_background();
}

void VirtualWorld::check_step(Rank rank) {
  Member& who = *ranks_[rank];
  if (who.to_finish > 0 || who.done || who.step == script_.steps.size()) return;
  outcome_.step_ends[who.step] = std::max(outcome_.step_ends[who.step], agenda_.now());
  outcome_.finished = std::max(outcome_.finished, agenda_.now());
  ++who.step;
  who.to_finish = 1;
  agenda_.at(agenda_.now(), *this, kStep, static_cast<std::uint64_t>(rank));
}

void VirtualWorld::fault(const Fault& fault) {
  Member& who = *ranks_[fault.rank];
  if (fault.kind == Fault::Kind::resume) --resumes_;
  // What has left a rank that is gone is on its way all the same.
  if (fault.kind == Fault::Kind::cut || fault.kind == Fault::Kind::mend) {
    for (VirtualNetwork* const network : {&network_, &lanes_}) {
      fault.kind == Fault::Kind::cut ? network->cut(fault.rank, fault.peer) : network->mend(fault.rank, fault.peer);
    }
    return;
  }
  if (who.state == Member::State::dead || who.state == Member::State::left) return;
  switch (fault.kind) {
    case Fault::Kind::kill:
      who.state = Member::State::dead;
      if (who.threads != nullptr) who.threads->stop();
      network_.kill(fault.rank, fault.noticed, kNoticeOfDeath);
      if (who.lane != nullptr) lanes_.kill(fault.rank, 0, 0);
      break;
    case Fault::Kind::stop:
      who.state = Member::State::stopped;
      if (who.threads != nullptr) who.threads->stop();
      break;
    case Fault::Kind::resume:
      who.state = Member::State::running;
      if (who.threads != nullptr) who.threads->go_on();
      if (std::exchange(who.missed, false)) news(fault.rank);
      break;
    case Fault::Kind::cut:
    case Fault::Kind::mend:
      break;
    case Fault::Kind::hold:
      if (who.threads != nullptr) who.threads->hold(fault.time);
      break;
    case Fault::Kind::abort:
      who.inbox.abort(detail::concat("rank ", fault.rank, " raised an exception (virtual world)"));
      wake_background(fault.rank);
      break;
  }
}

}  // namespace casync
