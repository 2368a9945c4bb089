#include "engine/negotiation.hpp"

#include <utility>

#include "casync/error.hpp"

namespace casync {

Negotiation::Negotiation(const Options& options, Submissions& submissions, Agreements& agreements, Planning& planning,
                         Outbox& out, Outcomes outcomes)
    : options_(options),
      submissions_(submissions),
      agreements_(agreements),
      planning_(planning),
      out_(out),
      outcomes_(std::move(outcomes)),
      ledger_(options.members, options.ledger, decisions()) {}

Ledger::Decisions Negotiation::decisions() {
  return {.verdict =
              [this](const Verdict& agreed, const Signature& signature) {
                Verdict verdict = agreed;
                const Agreements::Op* const known = agreements_.find(verdict.op);
                verdict.plan = known != nullptr ? known->plan : planning_.plan(verdict.name, signature, verdict.step);
                if (signature.kind == OpKind::alltoall) {
                  tell_columns(std::move(verdict));
                  return;
                }
                out_.tell_all(verdict);
                hear(verdict);
              },
          .start =
              [this](const Start& start) {
                if (tell_new_plan(start)) return;
                out_.tell_all(start);
                hear(start);
              },
          .refuse =
              [this](const Refuse& refuse) {
                if (!refuse.peers.empty()) return tell_each(refuse);
                out_.tell_all(refuse);
                hear(refuse);
              },
          .stand_in =
              [this](std::uint32_t member, const StandIn& wanted) {
                if (member == options_.member) {
                  hear(wanted);
                } else {
                  out_.tell(member, wanted);
                }
              },
          .report =
              [this](const Stall& stall) {
                Bytes bytes;
                put(bytes, stall);
                out_.emit({.kind = ActionKind::report, .bytes = bytes});
              }};
}

void Negotiation::define(Request definition) {
  const auto codecs = planning_.define(definition.name, definition.signature);
  submissions_.define(std::move(definition));
  for (const std::string& codec : codecs) out_.emit({.kind = ActionKind::measure, .bytes = bytes_of(codec)});
}

/// Of an alltoall each member hears only what comes to it: N numbers, where all would be N * N.
void Negotiation::tell_columns(Verdict verdict) {
  const std::vector<std::int64_t> all = std::move(verdict.rows);
  for (std::uint32_t to = options_.members; to-- > 0;) {  // the root, which begins at once, comes last
    verdict.rows.clear();
    for (std::uint32_t from = 0; from < options_.members; ++from)
      verdict.rows.push_back(all[from * options_.members + to]);
    if (to == options_.member) {
      hear(verdict);
    } else {
      out_.tell(to, verdict);
    }
  }
}

/// Of a disagreement each member hears who has other terms than its own.
void Negotiation::tell_each(Refuse refuse) {
  for (std::uint32_t to = options_.members; to-- > 0;) {
    refuse.facts.peer = refuse.peers[to];
    if (to == options_.member) {
      hear(refuse);
    } else {
      out_.tell(to, refuse);
    }
  }
}

void Negotiation::submit(std::uint32_t index, Nanoseconds now) {
  if (planning_.measuring()) tell_costs(index);

  Submissions::Run& run = submissions_.run(index);
  if (run.op == Submissions::kNone) {
    const Submissions::Registration& registration = submissions_.registration(run.registration);
    Request request{submissions_.text(run.name),
                    run.sequence,
                    registration.signature,
                    registration.site,
                    run.settled,
                    run.step,
                    run.splits};
    if (registration.signature.kind == OpKind::allgather) request.signature.shape.rows = run.rows;
    if (registration.signature.kind == OpKind::join) joined_ = true;
    to_root(request, now);
    return;
  }
  const Agreements::Op& op = *agreements_.find(run.op);
  const bool eager = op.eager && eager_bytes_ + op.shape->largest_message <= options_.eager_bytes && !ahead(run);
  if (eager) {
    run.eager_bytes = op.shape->largest_message;
    eager_bytes_ += run.eager_bytes;
  }
  to_root(Ready{run.op, run.sequence, eager ? 0U : 1U, run.settled, run.step}, now);
  // The ledger may have refused it, or started it at once.
  if (eager && run.active && !run.begun) outcomes_.begin(index);
}

void Negotiation::ended(std::uint32_t index) {
  const Submissions::Run& run = submissions_.run(index);
  eager_bytes_ -= run.eager_bytes;
  if (submissions_.registration(run.registration).signature.kind == OpKind::join) joined_ = false;
}

/// Whether this is the root and has not heard yet from all ranks of the run before. Nothing ends without the root, so
/// while it waits for them no rank gets further than the one run ahead that its book has room for.
bool Negotiation::ahead(const Submissions::Run& run) const {
  return is_root() && run.sequence > 0 && ledger_.incomplete(run.op, run.sequence - 1);
}

/// Before the submit itself is told, so that the root knows all ranks' costs when it has heard this submit from all.
void Negotiation::tell_costs(std::uint32_t index) {
  const Submissions::Run& run = submissions_.run(index);
  auto costs = planning_.costs(submissions_.registration(run.registration).signature, run.sequence);
  if (!costs) return;
  if (is_root()) {
    planning_.costs_of(0, *costs);
  } else {
    out_.tell(0, Costs{std::move(*costs)});
  }
}

void Negotiation::hear(std::uint32_t peer, const Costs& costs) {
  if (!is_root()) {
    throw CorruptPayload(detail::concat("rank ", peer, " sent its costs, but only rank 0 plans"), {.peer = peer});
  }
  planning_.costs_of(peer, costs.bytes);
}

void Negotiation::left(std::uint32_t peer) {
  if (is_root()) ledger_.left(peer);
}

void Negotiation::check(Nanoseconds now) {
  if (is_root()) ledger_.check(now);
}

void Negotiation::hear(const Verdict& verdict) {
  const std::uint32_t name = submissions_.find_name(verdict.name);
  CASYNC_CHECK(name != Submissions::kNone, "a verdict on tensor ", verdict.name, ", which was never submitted here");
  const std::uint32_t index = submissions_.find_run(name, verdict.sequence);
  CASYNC_CHECK(index != Submissions::kNone, "a verdict on a run of ", verdict.name, " that is not outstanding");
  Submissions::Run& run = submissions_.run(index);
  if (run.begun) {
    throw CorruptPayload(
        detail::concat("a verdict on run ", run.sequence, " of tensor ", verdict.name, ", which has begun"),
        {.tensor = verdict.name});
  }
  Submissions::Registration& registration = submissions_.registration(run.registration);
  if (registration.signature.kind == OpKind::allgather) check_rows(verdict, run.rows);
  if (registration.signature.kind == OpKind::alltoall) check_rows(verdict, run.splits[options_.member]);
  if (registration.signature.kind == OpKind::join) check_last(verdict);
  agreements_.agree(verdict, name, registration.signature, run.splits);
  run.op = verdict.op;
  run.settled = verdict.settled;
  run.step = verdict.step;
  if (Agreements::lasts(registration.signature.kind)) registration.op = verdict.op;
  outcomes_.begin(index);
}

/// The rows of an allgather or an alltoall say what is read from this rank's memory, and how much memory the result
/// takes.
void Negotiation::check_rows(const Verdict& verdict, std::int64_t submitted) const {
  if (verdict.rows.size() != options_.members || verdict.rows[options_.member] != submitted) {
    throw CorruptPayload(detail::concat("a verdict on run ", verdict.sequence, " of tensor ", verdict.name,
                                        " with the rows of ", verdict.rows.size(), " ranks, which does not fit the ",
                                        submitted, " that rank ", options_.member, " submitted"),
                         {.tensor = verdict.name});
  }
}

void Negotiation::check_last(const Verdict& verdict) const {
  if (verdict.rows.size() == 1 && verdict.rows[0] >= 0 && verdict.rows[0] < options_.members) return;
  throw CorruptPayload("a verdict on a join that does not say which rank was last");
}

/// A new plan takes the place of the start, in the one order of starts, so it holds from this run on everywhere. Only
/// for operations that begin by a start on every rank: of a small one, which is sent at once, this run may have begun
/// with the old plan somewhere.
bool Negotiation::tell_new_plan(const Start& start) {
  const Agreements::Op& op = *agreements_.find(start.op);
  if (op.eager) return false;
  const std::string& name = submissions_.text(op.name);
  const std::uint32_t index = submissions_.find_run(op.name, start.sequence);
  CASYNC_CHECK(index != Submissions::kNone, "a start of ", name, ", which is not outstanding on the root");
  const Submissions::Registration& registration = submissions_.registration(submissions_.run(index).registration);
  auto plan = planning_.re_plan(name, registration.signature, op.plan, start.step);
  if (!plan) return false;
  const Verdict verdict{name, start.sequence, start.op, std::move(*plan), {}, start.settled, start.step};
  out_.tell_all(verdict);
  hear(verdict);
  return true;
}

void Negotiation::hear(const Start& start) {
  const Agreements::Op* const op = agreements_.find(start.op);
  CASYNC_CHECK(op != nullptr, "a start of operation ", start.op, ", which was never agreed");
  const std::uint32_t index = submissions_.find_run(op->name, start.sequence);
  if (index == Submissions::kNone) {
    CASYNC_CHECK(submissions_.was_submitted(op->name, start.sequence),
                 "a start of a run that was never submitted here");
    return;  // eager here, and through: the data of those who were held back overtook the root's message
  }
  if (submissions_.run(index).begun) return;  // eager here, held back elsewhere
  if (submissions_.run(index).op != start.op) {
    throw CorruptPayload(detail::concat("a start of operation ", start.op, " for run ", start.sequence, " of tensor ",
                                        submissions_.text(op->name), ", which is not agreed on as that"),
                         {.tensor = submissions_.text(op->name)});
  }
  submissions_.run(index).settled = start.settled;
  submissions_.run(index).step = start.step;
  outcomes_.begin(index);
}

void Negotiation::hear(const Refuse& refuse) {
  const std::uint32_t name = submissions_.find_name(refuse.name);
  if (name == Submissions::kNone) return;
  const std::uint32_t index = submissions_.find_run(name, refuse.sequence);
  if (index == Submissions::kNone) return;  // not submitted here: told again when it is
  const Submissions::Run& run = submissions_.run(index);
  if (run.begun && !agreements_.find(run.op)->eager) {
    throw CorruptPayload(
        detail::concat("a refusal of run ", run.sequence, " of tensor ", refuse.name, ", which has begun"),
        {.tensor = refuse.name});
  }
  drop_early(name, refuse.sequence);
  outcomes_.refuse(index, refuse);
}

/// What came for the runs of a tensor up to `sequence`, which do not begin here.
void Negotiation::drop_early(std::uint32_t name, std::uint32_t sequence) {
  for (const std::uint64_t cookie : agreements_.forget(name, sequence)) {
    out_.emit({.kind = ActionKind::drop, .value = cookie});
  }
}

void Negotiation::hear(const StandIn& wanted) {
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
  Bytes definition;
  put_definition(definition, {wanted.name, wanted.sequence, wanted.signature, "join()"});
  out_.emit({.kind = ActionKind::stand_in, .bytes = definition});
}

}  // namespace casync
