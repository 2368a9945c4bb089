#include "engine/tensor_table.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "casync/error.hpp"

namespace casync {

std::string describe(const Signature& signature) {
  std::ostringstream out;
  out << name_of(signature.kind);
  if (signature.kind == OpKind::barrier || signature.kind == OpKind::join) return out.str();
  out << ' ' << name_of(signature.dtype) << ' ' << signature.dims;
  if (signature.kind == OpKind::broadcast) out << ", root rank " << signature.root;
  if (reduces(signature.kind)) {
    out << ", op " << name_of(signature.op) << ", compression " << signature.compression;
    if (signature.topology != "auto") out << ", topology " << signature.topology;
    if (signature.prescale != 1.0F || signature.postscale != 1.0F) {
      out << ", prescale " << signature.prescale << ", postscale " << signature.postscale;
    }
  }
  if (signature.priority != 0) out << ", priority " << signature.priority;
  if (signature.seed != 0) out << ", seed " << signature.seed;
  if (signature.memory != MemoryKind::host) out << ", on a " << name_of(signature.memory);
  return out.str();
}

namespace {

/// A text lists so many sides or ranks, and counts the others.
constexpr std::size_t kListed = 16;

/// An allgather's rows may differ between ranks; everything else must be alike.
bool agree(const Signature& a, const Signature& b) {
  if (a.kind != OpKind::allgather || b.kind != OpKind::allgather) return a == b;
  return a.dtype == b.dtype && a.shape.cols == b.shape.cols && a.dims == b.dims && a.memory == b.memory &&
         a.priority == b.priority;
}

/// The first word of Horovod's texts, so that scripts that look for it find it (common/controller.cc,
/// ConstructResponse).
std::string difference(const Signature& a, const Signature& b) {
  if (a.kind != b.kind) return "Mismatched operations";
  if (a.dtype != b.dtype) return "Mismatched data types";
  if (!(a.shape == b.shape) || a.dims != b.dims) return "Mismatched " + std::string(name_of(a.kind)) + " tensor shapes";
  if (a.op != b.op) return "Mismatched reduction operation";
  if (a.root != b.root) return "Mismatched " + std::string(name_of(a.kind)) + " root ranks";
  if (a.prescale != b.prescale || a.postscale != b.postscale) return "Mismatched prescale and/or postscale factors";
  if (a.compression != b.compression) return "Mismatched compression";
  if (a.priority != b.priority) return detail::concat("Mismatched priority ", a.priority, " and ", b.priority);
  if (a.seed != b.seed) return detail::concat("Mismatched seed ", a.seed, " and ", b.seed);
  if (a.memory != b.memory) return "Mismatched CPU/GPU device selection";
  return "Mismatched topology";
}

}  // namespace

TensorTable::TensorTable(std::uint32_t members, Options options)
    : members_(members),
      options_(options),
      heard_(members, 0),
      left_(members, false),
      joined_(members, false),
      lateness_(members) {}

/// A member's reports come in the order of its submits. A second one of a run would count for a member that has said
/// nothing yet, or open a run again that is over.
void TensorTable::note_report(TensorEntry& entry, std::uint32_t member, std::uint32_t sequence) {
  if (sequence < entry.reported[member]) {
    throw CorruptPayload(
        detail::concat("rank ", member, " reported run ", sequence, " of tensor ", entry.name, " twice"),
        {.tensor = entry.name, .peer = member});
  }
  entry.reported[member] = sequence + 1;
  ++lateness_[member].reports;
}

TensorTable::Run& TensorTable::open(TensorEntry& entry, std::uint32_t sequence, Nanoseconds now) {
  Run& run = entry.runs[sequence % 2];
  if (run.count == 0) {
    run.sequence = sequence;
    run.since = now;
    run.requested = run.wants_start = run.warned = run.joins = false;
    run.variants.assign(members_, kNone);
    run.asked.assign(members_, false);
    run.rows.clear();
    ++open_;
  }
  CASYNC_CHECK(run.sequence == sequence, "tensor ", entry.name, ": run ", sequence, " while run ", run.sequence,
               " is open");
  return run;
}

const TensorTable::Decisions& TensorTable::request(Rank member, const Request& request, Nanoseconds now) {
  decided_.clear();
  const auto [at, is_new] = by_name_.try_emplace(request.name, entries_.next());
  if (is_new) {
    entries_.add({request.name, {}, std::vector<std::string>(members_), std::vector<std::uint32_t>(members_)});
  }
  TensorEntry& entry = entries_[at->second];
  note_report(entry, member, request.sequence);
  last_report_ = now;
  heard_[member] = request.evictions;
  const auto same = [&](std::uint32_t op) { return agree(signature_of(op), request.signature); };
  const auto known = std::find_if(entry.known.begin(), entry.known.end(), same);
  const std::uint32_t variant = known != entry.known.end() ? *known : ops_.add({at->second, request.signature});
  if (known == entry.known.end()) entry.known.push_back(variant);
  entry.sites[member] = request.site;
  if (refuse_again(entry, request.sequence)) {
    untidy_.push_back(at->second);
    return decided_;
  }
  Run& run = open(entry, request.sequence, now);
  run.requested = true;
  note_rows(run, member, request);
  record(entry, run, member, variant, {.settled = request.settled, .step = request.step});
  return decided_;
}

void TensorTable::evict(std::uint32_t op) { evicted_.push_back({op, ++evictions_}); }

void TensorTable::restore(std::uint32_t op) {
  std::erase_if(evicted_, [&](const Evicted& one) { return one.op == op; });
}

/// Whether a run that is open has been reported as variant `op`.
bool TensorTable::uses(const TensorEntry& entry, std::uint32_t op) const {
  return std::ranges::any_of(entry.runs, [&](const Run& run) {
    return run.count > 0 && std::ranges::find(run.variants, op) != run.variants.end();
  });
}

void TensorTable::forget(std::uint32_t op) {
  const std::uint32_t entry = ops_[op].entry;
  std::erase(entries_[entry].known, op);
  ops_.erase(op);
  untidy_.push_back(entry);
}

void TensorTable::tidy(const std::function<bool(std::uint32_t op)>& is_pending) {
  if (evicted_.empty() && untidy_.empty()) return;
  heard_[0] = evictions_;  // the root, whose reports take no time
  const std::uint32_t heard = *std::ranges::min_element(heard_);
  std::erase_if(evicted_, [&](const Evicted& one) {
    if (one.count > heard || is_pending(one.op) || uses(entries_[ops_[one.op].entry], one.op)) return false;
    forget(one.op);
    return true;
  });
  for (const std::uint32_t number : std::exchange(untidy_, {})) {
    TensorEntry* const entry = entries_.find(number);
    if (entry == nullptr) continue;
    std::erase_if(entry->known, [&](std::uint32_t op) {
      if (ops_[op].agreed || uses(*entry, op)) return false;
      ops_.erase(op);
      return true;
    });
    const std::uint32_t all = *std::ranges::min_element(entry->reported);
    std::erase_if(entry->refused, [&](const Refusal& refused) { return refused.sequence < all; });
    const bool is_open = std::ranges::any_of(entry->runs, [](const Run& run) { return run.count > 0; });
    if (!entry->known.empty() || !entry->refused.empty() || is_open) continue;
    by_name_.erase(entry->name);
    entries_.erase(number);
  }
}

const TensorTable::Decisions& TensorTable::ready(Rank member, const Ready& ready, Nanoseconds now) {
  decided_.clear();
  ready.ops.for_each([&](std::uint32_t op) { record(member, op, ready, now); });
  return decided_;
}

void TensorTable::record(Rank member, std::uint32_t op, const Ready& ready, Nanoseconds now) {
  const Variant* const variant = ops_.find(op);
  if (variant == nullptr) {
    throw CorruptPayload(detail::concat("rank ", member, " is ready for operation ", op, ", which is not agreed"),
                         {.peer = member});
  }
  TensorEntry& entry = entries_[variant->entry];
  note_report(entry, member, ready.sequence);
  last_report_ = now;
  if (refuse_again(entry, ready.sequence)) return;
  Run& run = open(entry, ready.sequence, now);
  if (ready.wants_start != 0) run.wants_start = true;
  record(entry, run, member, op, {.settled = ready.settled, .step = ready.step, .by_lane = ready.by_lane});
}

/// Of a run on whose kind the ranks disagree they are of no use, whatever they are.
void TensorTable::note_rows(Run& run, std::uint32_t member, const Request& request) const {
  if (request.signature.kind == OpKind::alltoall) {
    if (request.splits.size() != members_) {
      throw CorruptPayload(detail::concat("rank ", member, " splits tensor ", request.name, " among ",
                                          request.splits.size(), " of ", members_, " ranks"),
                           {.tensor = request.name, .op = request.signature.kind, .peer = member});
    }
    run.rows.resize(std::size_t{members_} * members_);
    std::copy(request.splits.begin(), request.splits.end(), run.rows.begin() + std::ptrdiff_t{member} * members_);
  } else if (request.signature.kind == OpKind::allgather) {
    run.rows.resize(std::max<std::size_t>(run.rows.size(), members_));
    run.rows[member] = request.signature.shape.rows;
  }
}

bool TensorTable::incomplete(std::uint32_t op, std::uint32_t sequence) const {
  const Run& run = entries_[ops_[op].entry].runs[sequence % 2];
  return run.count > 0 && run.sequence == sequence;
}

bool TensorTable::refuse_again(TensorEntry& entry, std::uint32_t sequence) {
  const auto same = [&](const Refusal& refused) { return refused.sequence == sequence; };
  const auto at = std::find_if(entry.refused.begin(), entry.refused.end(), same);
  if (at != entry.refused.end()) decided_.emplace_back(*at);
  return at != entry.refused.end();
}

void TensorTable::record(TensorEntry& entry, Run& run, std::uint32_t member, std::uint32_t variant,
                         const Report& report) {
  const bool is_first = run.count == 0;
  run.settled = is_first || run.settled == report.settled ? report.settled : 0;
  run.step = is_first ? report.step : std::max(run.step, report.step);
  run.by_lane = report.by_lane && (is_first || run.by_lane);
  run.variants[member] = variant;
  ++run.count;
  if (signature_of(variant).kind == OpKind::join) {
    run.joins = true;
    join(member);
  }
  if (run.count == members_) {
    if (members_ > 1 && !run.joins) {
      ++lateness_[member].last;
      lateness_[member].time += last_report_ - run.since;
    }
    decide(entry, run, member);
    return;
  }
  if (left_count_ > 0 && refuse_without_leavers(entry, run, member)) return;
  if (joined_count_ > 0) ask_stand_ins(entry, run);
}

/// Whether a member that left has not reported the run, which `member` has just reported: then it cannot happen.
bool TensorTable::refuse_without_leavers(TensorEntry& entry, Run& run, std::uint32_t member) {
  for (std::uint32_t m = 0; m < members_; ++m) {
    if (left_[m] && run.variants[m] == kNone) {
      refuse(entry, run, Status::aborted,
             detail::concat("rank ", m, " has shut down without submitting tensor ", entry.name, ", which rank ",
                            member, " submitted at ", place_of(entry, member)),
             {.kind = ErrorKind::shut_down, .peer = m});
      return true;
    }
  }
  return false;
}

/// The member's program submits nothing until all have joined.
void TensorTable::join(std::uint32_t member) {
  if (!joined_[member]) ++joined_count_;
  joined_[member] = true;
  entries_.for_each([&](std::uint32_t /*number*/, TensorEntry& entry) {
    for (const Refusal& refused : entry.refused) {
      if (refused.sequence >= entry.reported[member]) skip_joined(entry, member, refused.sequence);
    }
    for (Run& run : entry.runs) {
      if (run.count > 0) ask_stand_ins(entry, run);
    }
  });
}

void TensorTable::end_join() {
  joined_.assign(members_, false);
  joined_count_ = 0;
}

/// Of a run that waits for nobody but members that have joined, these are told to stand in; what they cannot stand in
/// for is refused.
void TensorTable::ask_stand_ins(TensorEntry& entry, Run& run) {
  const auto absent = [&](std::uint32_t m) { return run.variants[m] == kNone && !run.asked[m]; };
  std::vector<std::uint32_t> substitutes;
  bool waits = false;
  for (std::uint32_t m = 0; m < members_; ++m) {
    if (absent(m) && joined_[m]) substitutes.push_back(m);
    waits |= absent(m) && !joined_[m];
  }
  const auto reported = [](std::uint32_t variant) { return variant != kNone; };
  const std::uint32_t first = *std::find_if(run.variants.begin(), run.variants.end(), reported);
  const Signature& signature = signature_of(first);
  if (substitutes.empty() || signature.kind == OpKind::join) return;
  if (!goes_on_without(signature.kind)) {
    std::string kind(name_of(signature.kind));
    kind.front() = static_cast<char>(std::toupper(kind.front()));
    refuse(entry, run, Status::mismatch,
           detail::concat(kind, " is not supported with Join at this time. Tensor ", entry.name, " waits for rank ",
                          substitutes.front(), ", which has joined: only allreduce and barrier go on without it"),
           {.kind = ErrorKind::joined, .peer = substitutes.front()});
    return;
  }
  if (waits) return;
  if (!std::all_of(run.variants.begin(), run.variants.end(),
                   [&](auto variant) { return !reported(variant) || variant == first; })) {
    refuse_disagreement(entry, run);
    return;
  }
  for (const std::uint32_t m : substitutes) {
    run.asked[m] = true;
    decided_.emplace_back(Substitute{m, {entry.name, run.sequence, false, signature}});
  }
}

/// The run will not happen, and the member, which has joined, will not come to be told so.
void TensorTable::skip_joined(TensorEntry& entry, std::uint32_t member, std::uint32_t sequence) {
  entry.reported[member] = sequence + 1;
  decided_.emplace_back(Substitute{member, {entry.name, sequence, true, {}}});
}

void TensorTable::decide(TensorEntry& entry, Run& run, std::uint32_t last) {
  const std::uint32_t first = run.variants[0];
  const bool same = std::all_of(run.variants.begin(), run.variants.end(), [&](std::uint32_t t) { return t == first; });
  if (!same) {
    refuse_disagreement(entry, run);
    return;
  }
  Variant& variant = ops_[first];
  if (run.requested) {
    variant.agreed = true;
    restore(first);
    Agreement agreement{entry.name, run.sequence, first, {}, {}, run.settled, run.step};
    if (variant.signature.kind == OpKind::allgather || variant.signature.kind == OpKind::alltoall)
      agreement.rows = run.rows;
    if (variant.signature.kind == OpKind::join) {
      agreement.rows = {last};
      end_join();
    }
    close(run);
    decided_.emplace_back(Agreed{std::move(agreement), variant.signature});
  } else {
    const bool wanted = run.wants_start;
    close(run);
    if (wanted) decided_.emplace_back(Started{first, run.sequence, run.settled, run.step, run.by_lane});
  }
}

void TensorTable::close(Run& run) {
  run.count = 0;
  --open_;
}

void TensorTable::refuse(TensorEntry& entry, Run& run, Status status, std::string text, ErrorFacts facts,
                         std::vector<std::uint32_t> peers) {
  Refusal refused{entry.name, run.sequence, status, std::move(text), std::move(facts), std::move(peers)};
  if (run.count < members_) entry.refused.push_back(refused);
  untidy_.push_back(by_name_.at(entry.name));
  if (run.joins) end_join();
  for (std::uint32_t m = 0; joined_count_ > 0 && m < members_; ++m) {
    if (joined_[m] && run.variants[m] == kNone && !run.asked[m]) skip_joined(entry, m, run.sequence);
  }
  close(run);
  decided_.emplace_back(std::move(refused));
}

const TensorTable::Decisions& TensorTable::left(Rank member) {
  decided_.clear();
  if (!left_[member]) ++left_count_;
  left_[member] = true;
  entries_.for_each([&](std::uint32_t /*number*/, TensorEntry& entry) {
    for (Run& run : entry.runs) {
      if (run.count > 0 && run.variants[member] == kNone) {
        refuse(entry, run, Status::aborted,
               detail::concat("rank ", member, " has shut down without submitting tensor ", entry.name),
               {.kind = ErrorKind::shut_down, .peer = member});
      }
    }
  });
  return decided_;
}

const TensorTable::Decisions& TensorTable::check(Nanoseconds now) {
  decided_.clear();
  if (open_ == 0) return decided_;
  entries_.for_each([&](std::uint32_t /*number*/, TensorEntry& entry) {
    for (Run& run : entry.runs) {
      if (run.count == 0) continue;
      // A join waits for as long as the others have something to submit.
      const Nanoseconds waited = now - (run.joins ? std::max(run.since, last_report_) : run.since);
      if (waited >= options_.timeout) {
        Stall found = stall(entry, run, now);
        refuse(entry, run, Status::timeout, std::move(found.text),
               {.kind = ErrorKind::stalled, .peer = found.missing.front()});
      } else if (waited >= options_.stall_warning && !run.warned) {
        run.warned = true;
        decided_.emplace_back(stall(entry, run, now));
      }
    }
  });
  return decided_;
}

std::string TensorTable::place_of(const TensorEntry& entry, std::uint32_t member) const {
  return entry.sites[member].empty() ? std::string("an unknown place") : entry.sites[member];
}

void TensorTable::refuse_disagreement(TensorEntry& entry, Run& run) {
  refuse(entry, run, Status::mismatch, disagreement(entry, run), {.kind = ErrorKind::mismatch}, others(run));
}

/// Per member the first one that has reported another variant than its own.
std::vector<std::uint32_t> TensorTable::others(const Run& run) const {
  std::vector<std::uint32_t> others;
  for (const std::uint32_t own : run.variants) {
    const auto differs = [&](std::uint32_t variant) { return variant != kNone && variant != own; };
    const auto at = std::find_if(run.variants.begin(), run.variants.end(), differs);
    others.push_back(static_cast<std::uint32_t>(at - run.variants.begin()));
  }
  return others;
}

std::string TensorTable::disagreement(const TensorEntry& entry, const Run& run) const {
  std::map<std::uint32_t, std::vector<std::uint32_t>> sides;
  for (std::uint32_t m = 0; m < members_; ++m) {
    if (run.variants[m] != kNone) sides[run.variants[m]].push_back(m);
  }
  const auto one = sides.begin();
  const auto other = std::next(one);
  std::ostringstream out;
  out << difference(signature_of(one->first), signature_of(other->first)) << ": the ranks disagree about tensor "
      << entry.name << ".";
  std::size_t listed = 0;
  for (const auto& [variant, ranks] : sides) {
    if (listed++ == kListed) {
      out << "\n  " << sides.size() - kListed << " more ranks or groups of ranks, each with other terms";
      break;
    }
    out << "\n  rank" << (ranks.size() > 1 ? "s" : "");
    for (const std::uint32_t m : ranks) out << ' ' << m;
    out << ": " << describe(signature_of(variant)) << ", submitted at " << place_of(entry, ranks.front());
  }
  out << "\nMake every rank submit this name with the same terms, or give the tensors different names.";
  return out.str();
}

Stall TensorTable::stall(const TensorEntry& entry, const Run& run, Nanoseconds now) const {
  Stall found{.name = entry.name};
  const auto reported =
      std::find_if(run.variants.begin(), run.variants.end(), [](auto variant) { return variant != kNone; });
  found.kind = signature_of(*reported).kind;
  std::ostringstream out;
  out << "tensor " << entry.name << " was submitted by a subset of the ranks and waits since "
      << (now - run.since) / 1'000'000'000 << " s for the others.\n  missing ranks:";
  for (std::uint32_t m = 0; m < members_; ++m) {
    const bool joined = joined_[m] && !run.asked[m];
    if (run.variants[m] != kNone) continue;
    found.missing.push_back(m);
    out << ' ' << m << (joined ? " (has joined)" : "");
  }
  const auto list = [&](const char* when, const auto& is_one) {
    std::size_t listed = 0;
    for (std::uint32_t m = 0; m < members_; ++m) {
      if (is_one(m) && listed++ < kListed) out << "\n  rank " << m << when << place_of(entry, m);
    }
    if (listed > kListed) out << "\n  and " << listed - kListed << " more ranks";
  };
  list(" submitted it at ", [&](std::uint32_t m) { return run.variants[m] != kNone; });
  list(" submitted it last at ", [&](std::uint32_t m) { return run.variants[m] == kNone && !entry.sites[m].empty(); });
  found.text = out.str();
  return found;
}

}  // namespace casync
