#include "engine/negotiation.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <variant>

#include "casync/error.hpp"
#include "common/hash.hpp"
#include "coordinator/queue_up.hpp"

namespace casync {

Negotiation::Negotiation(const Options& options, Submissions& submissions, Agreements& agreements, Outbox& out)
    : options_(options),
      submissions_(submissions),
      agreements_(agreements),
      out_(out),
      table_(options.members, options.tensor_table),
      reports_(options.interval),
      starts_(options.interval),
      costs_told_(options.members, false) {}

Nanoseconds Negotiation::interval_for(std::uint32_t members) {
  constexpr std::uint32_t kFew = 16;
  constexpr Nanoseconds kPerMember = 10'000;
  constexpr Nanoseconds kMost = 5'000'000;
  return members <= kFew ? 0 : std::min(members * kPerMember, kMost);
}

/// Tells all members what the root's tensor table has decided, this one too.
void Negotiation::announce(const TensorTable::Decisions& decisions) {
  for (const TensorTable::Decision& decision : decisions) {
    std::visit([this](const auto& what) { announce(what); }, decision);
  }
}

void Negotiation::announce(const TensorTable::Agreed& agreed) {
  const Agreement& agreement = agreed.agreement;
  const Agreements::Op* const known = agreements_.find(agreement.op);
  if (known != nullptr && !(Agreements::lasts(agreed.signature.kind) && wants_new_plan(agreement.op, agreement.step))) {
    tell(agreed, known->plan);
  } else {
    want_plan(agreement.op, agreement.name, agreed.signature, agreement.step, agreed);
  }
}

void Negotiation::tell(const TensorTable::Agreed& agreed, const GradientPlan& plan) {
  tell_starts();
  Agreement agreement = agreed.agreement;
  agreement.plan = plan;
  if (agreed.signature.kind == OpKind::alltoall) {
    tell_columns(std::move(agreement));
    return;
  }
  out_.tell_all(agreement);
  take(agreement);
}

void Negotiation::announce(const TensorTable::Started& started) {
  if (wants_new_plan(started.op, started.step)) {
    const Agreements::Op& op = *agreements_.find(started.op);
    want_plan(started.op, submissions_.text(op.name), op.signature, started.step, started);
  } else {
    tell(started);
  }
}

/// What begins unasked takes no memory.
void Negotiation::tell(const TensorTable::Started& started) {
  const Agreements::Op& op = *agreements_.find(started.op);
  if (agreements_.ranked() && !op.eager) {
    queue_up(ranked_, {priority_of(op.plan, op.signature), started}, &Ranked::priority);
  } else {
    start(started);
  }
}

void Negotiation::start_ranked(std::size_t free_bytes) {
  while (!ranked_.empty() && free_bytes > 0) {
    const TensorTable::Started started = ranked_.front().started;
    ranked_.pop_front();
    const Agreements::Op& op = *agreements_.find(started.op);
    for (const std::size_t bytes : op.graphs[op.turn(started.step)]->workflow.reserve)
      free_bytes -= std::min(free_bytes, bytes);
    start(started);
  }
}

/// While it waited for a plan or for memory the ranks may have evicted it: then it is agreed on anew.
void Negotiation::start(const TensorTable::Started& started) {
  const Agreements::Op& op = *agreements_.find(started.op);
  if (op.evicted) return tell_anew(started, op.plan);
  starts_.add(started.op, {{}, started.sequence, started.settled, started.step, started.by_lane});
}

/// All ranks begin in one order, so that whatever else is told to all comes after the starts before it.
void Negotiation::tell_starts() {
  for (const Start& start : starts_.take(now_)) {
    out_.tell_all(start);
    take(start);
  }
}

/// The root hears of a rank's runs in their order, so that whatever else is told to it comes after them.
void Negotiation::tell_reports() {
  for (const Ready& ready : reports_.take(now_)) out_.tell(0, ready);
}

const Negotiation::Outcomes& Negotiation::speak(Nanoseconds now, std::size_t free_bytes) {
  outcomes_.clear();
  now_ = now;
  tidy();
  if (reports_.due(now)) tell_reports();
  lacks_memory_ = now >= starts_.next();
  if (lacks_memory_ && !ranked_.empty()) start_ranked(free_bytes);
  if (starts_.due(now)) tell_starts();
  return outcomes_;
}

const Negotiation::Outcomes& Negotiation::goodbye(Nanoseconds now) {
  outcomes_.clear();
  now_ = now;
  tell_reports();
  start_ranked(std::numeric_limits<std::size_t>::max());
  tell_starts();
  return outcomes_;
}

/// What begins without asking keeps its plan: a run may have begun somewhere before a new one came.
bool Negotiation::wants_new_plan(std::uint32_t number, std::uint32_t step) {
  const Agreements::Op& op = *agreements_.find(number);
  if (op.eager) return false;
  return is_over(op.plan, step) || asked_.at(number) < plans_changed_;
}

/// The decision on a run waits until its operation has a plan. There is one of an operation at a time: its next run is
/// not submitted here before this one is over.
void Negotiation::want_plan(std::uint32_t op, const std::string& name, const Signature& signature, std::uint32_t step,
                            TensorTable::Decision decision) {
  std::optional<GradientPlan> current;
  if (const Agreements::Op* const known = agreements_.find(op)) current = known->plan;
  wanted_.push_back({op, name, signature, std::move(current), step});
  unplanned_.insert_or_assign(op, Unplanned{std::move(decision), name, signature.kind, now_});
  asked_[op] = plans_changed_;
}

void Negotiation::want_plans() {
  if (wanted_.empty()) return;
  out_.emit(action::PlanWanted{wanted_});
  wanted_.clear();
}

Negotiation::Unplanned* Negotiation::longest_unplanned() {
  Unplanned* longest = nullptr;
  for (auto& [op, one] : unplanned_) {
    if (longest == nullptr || one.since < longest->since) longest = &one;
  }
  return longest;
}

void Negotiation::restart_unplanned(Nanoseconds now) {
  for (auto& [op, one] : unplanned_) one.since = now;
}

const Negotiation::Outcomes& Negotiation::planned(std::span<const event::Planned::Plan> plans, Nanoseconds now) {
  outcomes_.clear();
  now_ = now;
  for (const auto& [op, plan] : plans) {
    const auto at = unplanned_.find(op);
    CASYNC_CHECK(at != unplanned_.end(), "a plan for operation ", op, ", which wants none");
    const TensorTable::Decision decision = std::move(at->second.decision);
    unplanned_.erase(at);
    if (const auto* const agreed = std::get_if<TensorTable::Agreed>(&decision)) {
      const Agreements::Op* const known = agreements_.find(op);
      CASYNC_CHECK(plan || known != nullptr, "no plan for tensor ", agreed->agreement.name, ", which is new");
      tell(*agreed, plan ? *plan : known->plan);
    } else {
      tell(std::get<TensorTable::Started>(decision), plan);
    }
  }
  return outcomes_;
}

/// A new plan takes the place of the start, in the one order of starts, so it holds from this run on everywhere.
void Negotiation::tell(const TensorTable::Started& started, const std::optional<GradientPlan>& plan) {
  plan ? tell_anew(started, *plan) : tell(started);
}

void Negotiation::tell_anew(const TensorTable::Started& started, const GradientPlan& plan) {
  tell_starts();
  const Agreements::Op& op = *agreements_.find(started.op);
  const Agreement agreement{
      submissions_.text(op.name), started.sequence, started.op, plan, {}, started.settled, started.step};
  out_.tell_all(agreement);
  take(agreement);
}

void Negotiation::announce(const Refusal& refusal) {
  tell_starts();
  if (!refusal.peers.empty()) return tell_each(refusal);
  out_.tell_all(refusal);
  take(refusal);
}

void Negotiation::announce(const TensorTable::Substitute& substitute) {
  tell_starts();
  if (substitute.member == options_.member) {
    take(substitute.wanted);
  } else {
    out_.tell(substitute.member, substitute.wanted);
  }
}

void Negotiation::announce(const Stall& stall) { out_.emit(action::Report{stall}); }

/// Of an alltoall each member hears only what comes to it: N numbers, where all would be N * N.
void Negotiation::tell_columns(Agreement agreement) {
  const std::vector<std::int64_t> all = std::move(agreement.rows);
  for (std::uint32_t to = options_.members; to-- > 0;) {  // the root, which begins at once, comes last
    agreement.rows.clear();
    for (std::uint32_t from = 0; from < options_.members; ++from)
      agreement.rows.push_back(all[from * options_.members + to]);
    if (to == options_.member) {
      take(agreement);
    } else {
      out_.tell(to, agreement);
    }
  }
}

/// Of a disagreement each member hears who has other terms than its own.
void Negotiation::tell_each(Refusal refusal) {
  for (std::uint32_t to = options_.members; to-- > 0;) {
    refusal.facts.peer = refusal.peers[to];
    if (to == options_.member) {
      take(refusal);
    } else {
      out_.tell(to, refusal);
    }
  }
}

const Negotiation::Outcomes& Negotiation::submit(std::uint32_t index, Nanoseconds now) {
  outcomes_.clear();
  now_ = now;
  Submissions::Run& run = submissions_.run(index);
  const Agreements::Op* const kept = agreements_.find(run.op);
  if (kept == nullptr || kept->evicted) {
    run.op = Submissions::kNone;
    const Submissions::Registration& registration = submissions_.registration(run.registration);
    Request request{submissions_.text(run.name),
                    run.sequence,
                    registration.signature,
                    registration.site,
                    run.settled,
                    run.step,
                    run.splits,
                    evictions_};
    if (registration.signature.kind == OpKind::allgather) request.signature.shape.rows = run.rows;
    if (registration.signature.kind == OpKind::join) joined_ = true;
    if (is_root()) {
      announce(table_.request(0, request, now));
    } else {
      tell_reports();
      out_.tell(0, request);
    }
    return outcomes_;
  }
  const Agreements::Op& op = *kept;
  const bool eager =
      op.eager && eager_bytes_ + op.graphs.front()->largest_message <= options_.eager_bytes && !ahead(run);
  if (eager) {
    run.eager_bytes = op.graphs.front()->largest_message;
    eager_bytes_ += run.eager_bytes;
  }
  if (op.eager) run.by_lane = false;  // who begins at once has asked nobody
  Ready ready{{}, run.sequence, eager ? 0U : 1U, run.settled, run.step, run.by_lane};
  if (is_root()) {
    ready.ops.insert(run.op);
    announce(table_.ready(0, ready, now));
  } else {
    reports_.add(run.op, std::move(ready));
  }
  // On the root the tensor table may have refused it by this.
  const bool decided = std::ranges::any_of(outcomes_, [&](const Outcome& outcome) { return outcome.run == index; });
  if (eager && !decided) outcomes_.push_back({index});
  return outcomes_;
}

void Negotiation::ended(std::uint32_t index) {
  const Submissions::Run& run = submissions_.run(index);
  eager_bytes_ -= run.eager_bytes;
  if (submissions_.registration(run.registration).signature.kind == OpKind::join) joined_ = false;
}

/// Whether this is the root and has not heard yet from all ranks of the run before. Nothing ends without the root, so
/// while it waits for them no rank gets further than the one run ahead that its entry has room for.
bool Negotiation::ahead(const Submissions::Run& run) const {
  return is_root() && run.sequence > 0 && table_.incomplete(run.op, run.sequence - 1);
}

void Negotiation::costs_known(std::span<const std::byte> costs) {
  if (is_root()) {
    collect(options_.member, costs);
  } else {
    out_.tell(0, Costs{{costs.begin(), costs.end()}});
  }
}

void Negotiation::hear(Rank peer, const Costs& costs) {
  if (!is_root()) {
    throw CorruptPayload(detail::concat("rank ", peer, " sent its costs, but only rank 0 plans"), {.peer = peer});
  }
  collect(peer, costs.bytes);
}

/// Each time when all have told theirs, plans may change.
void Negotiation::collect(Rank member, std::span<const std::byte> costs) {
  out_.emit(action::CostsOf{member, costs});
  costs_told_[member] = true;
  if (std::ranges::count(costs_told_, true) < std::ptrdiff_t{options_.members}) return;
  costs_told_.assign(options_.members, false);
  plans_changed();
}

const Negotiation::Outcomes& Negotiation::left(Rank peer, Nanoseconds now) {
  outcomes_.clear();
  now_ = now;
  if (is_root()) announce(table_.left(peer));
  return outcomes_;
}

const Negotiation::Outcomes& Negotiation::check(Nanoseconds now) {
  outcomes_.clear();
  now_ = now;
  if (is_root()) announce(table_.check(now));
  return outcomes_;
}

void Negotiation::take(const Agreement& agreement) {
  const std::uint32_t name = submissions_.find_name(agreement.name);
  const std::uint32_t index =
      name == Submissions::kNone ? Submissions::kNone : submissions_.find_run(name, agreement.sequence);
  if (index == Submissions::kNone) {
    // Eager here, and through: the data of those who had evicted it overtook the root's message.
    CASYNC_CHECK(name == Submissions::kNone || submissions_.was_submitted(name, agreement.sequence),
                 "an agreement on run ", agreement.sequence, " of tensor ", agreement.name,
                 ", which was never submitted here");
    restore(agreement);
    return;
  }
  Submissions::Run& run = submissions_.run(index);
  Submissions::Registration& registration = submissions_.registration(run.registration);
  if (run.begun) {
    // Eager here, evicted elsewhere.
    const Agreements::Op* const op = agreements_.find(run.op);
    if (run.op != agreement.op || !op->eager || op->plan != agreement.plan) {
      throw CorruptPayload(
          detail::concat("an agreement on run ", run.sequence, " of tensor ", agreement.name, ", which has begun"),
          {.tensor = agreement.name});
    }
    restore(agreement);
    return;
  }
  if (registration.signature.kind == OpKind::allgather) check_rows(agreement, run.rows);
  if (registration.signature.kind == OpKind::alltoall) check_rows(agreement, run.splits[options_.member]);
  if (registration.signature.kind == OpKind::join) check_last(agreement);
  const bool is_new = agreements_.find(agreement.op) == nullptr;
  agreements_.agree(agreement, name, registration.signature, run.splits);
  if (is_new) submissions_.hold(name);
  run.op = agreement.op;
  run.settled = agreement.settled;
  run.step = agreement.step;
  run.by_lane = false;  // by another plan
  if (Agreements::lasts(registration.signature.kind)) registration.op = agreement.op;
  outcomes_.push_back({index});
  use(agreement.op, hash_text(agreement.name));
}

void Negotiation::restore(const Agreement& agreement) {
  agreements_.restore(agreement.op, agreement.plan);
  use(agreement.op, hash_text(agreement.name));
}

/// All ranks do this for the same operations in one order, and evict the same ones.
void Negotiation::use(std::uint32_t op, std::uint64_t name_hash) {
  agreements_.use(op, name_hash);
  if (is_root()) table_.restore(op);
  while (const auto number = agreements_.evict()) {
    ++evictions_;
    evicted_.push_back(*number);
    if (is_root()) table_.evict(*number);
  }
}

/// Forgets what was evicted and of which nothing is under way. The root keeps it, and its plan, until no report that
/// names it can come: a rank may have begun by that plan.
void Negotiation::tidy() {
  if (is_root()) {
    table_.tidy([this](std::uint32_t number) {
      const Agreements::Op* const op = agreements_.find(number);
      return unplanned_.contains(number) || (op != nullptr && submissions_.has_run(op->name, number));
    });
  }
  if (evicted_.empty()) return;
  std::erase_if(evicted_, [this](std::uint32_t number) {
    const Agreements::Op* const op = agreements_.find(number);
    if (op == nullptr) {
      agreements_.erase(number);
      return true;
    }
    if (op->place) return true;  // agreed on anew
    const bool is_expected = is_root() && table_.knows(number);
    if (is_expected || !op->early.empty() || submissions_.has_run(op->name, number)) return false;
    const std::uint32_t name = op->name;
    agreements_.erase(number);
    submissions_.let_go(name);
    asked_.erase(number);
    return true;
  });
}

/// The rows of an allgather or an alltoall say what is read from this rank's memory, and how much memory the result
/// takes.
void Negotiation::check_rows(const Agreement& agreement, std::int64_t submitted) const {
  if (agreement.rows.size() != options_.members || agreement.rows[options_.member] != submitted) {
    throw CorruptPayload(detail::concat("an agreement on run ", agreement.sequence, " of tensor ", agreement.name,
                                        " with the rows of ", agreement.rows.size(), " ranks, which does not fit the ",
                                        submitted, " that rank ", options_.member, " submitted"),
                         {.tensor = agreement.name});
  }
}

void Negotiation::check_last(const Agreement& agreement) const {
  if (agreement.rows.size() == 1 && agreement.rows[0] >= 0 && agreement.rows[0] < options_.members) return;
  throw CorruptPayload("an agreement on a join that does not say which rank was last");
}

/// Those of a higher priority begin first, and equal ones by their numbers. The plans are the same on all ranks, so
/// that is one order everywhere, in which memory is handed out.
void Negotiation::take(const Start& start) {
  started_.clear();
  start.ops.for_each([&](std::uint32_t number) {
    const Agreements::Op* const op = agreements_.find(number);
    CASYNC_CHECK(agreements_.use_again(number), "a start of operation ", number, ", which is not agreed");
    if (op == nullptr) return;  // it was agreed on for a run that was over here, as this one is
    started_.push_back({number, op});
  });
  const auto priority = [](const Known& known) { return priority_of(known.op->plan, known.op->signature); };
  if (!std::ranges::is_sorted(started_, std::greater(), priority)) {
    std::ranges::stable_sort(started_, std::greater(), priority);
  }
  for (const Known& known : started_) take(known, start);
}

void Negotiation::take(const Known& known, const Start& start) {
  const auto [op_number, op] = known;
  const std::uint32_t index = submissions_.find_run(op->name, start.sequence);
  if (index == Submissions::kNone) {
    CASYNC_CHECK(submissions_.was_submitted(op->name, start.sequence),
                 "a start of a run that was never submitted here");
    return;  // eager here, and through: the data of those who were held back overtook the root's message
  }
  if (submissions_.run(index).begun) return;  // eager here, held back elsewhere
  if (submissions_.run(index).op != op_number) {
    throw CorruptPayload(detail::concat("a start of operation ", op_number, " for run ", start.sequence, " of tensor ",
                                        submissions_.text(op->name), ", which is not agreed on as that"),
                         {.tensor = submissions_.text(op->name)});
  }
  submissions_.run(index).settled = start.settled;
  submissions_.run(index).step = start.step;
  submissions_.run(index).by_lane = start.by_lane;
  outcomes_.push_back({index});
}

void Negotiation::take(const Refusal& refusal) {
  const std::uint32_t name = submissions_.find_name(refusal.name);
  if (name == Submissions::kNone) return;
  const std::uint32_t index = submissions_.find_run(name, refusal.sequence);
  if (index == Submissions::kNone) return;  // not submitted here: told again when it is
  const Submissions::Run& run = submissions_.run(index);
  if (run.begun && !agreements_.find(run.op)->eager) {
    throw CorruptPayload(
        detail::concat("a refusal of run ", run.sequence, " of tensor ", refusal.name, ", which has begun"),
        {.tensor = refusal.name});
  }
  drop_early(name, refusal.sequence);
  outcomes_.push_back({index, refusal});
}

/// What came for the runs of a tensor up to `sequence`, which do not begin here.
void Negotiation::drop_early(std::uint32_t name, std::uint32_t sequence) {
  if (name == Submissions::kNone) return;
  for (const std::uint64_t message_id : agreements_.forget(name, sequence)) {
    out_.emit(action::Drop{message_id});
  }
}

void Negotiation::take(const SubmitForJoined& wanted) {
  if (!joined_) {
    throw CorruptPayload(detail::concat("rank ", options_.member, " is to stand in for tensor ", wanted.name,
                                        ", but its program has not joined"),
                         {.tensor = wanted.name});
  }
  if (wanted.refused) {
    submissions_.skip(wanted.name, wanted.sequence);
    drop_early(submissions_.find_name(wanted.name), wanted.sequence);
    return;
  }
  const Request definition{wanted.name, wanted.sequence, wanted.signature, "join()"};
  out_.emit(action::StandInFor{definition});
}

}  // namespace casync
