// A route that is given as a list of phases: the compression options of ByteComp (section 4.2, table 3). Its text is
//
//   phases(intra alltoall coded, inter alltoall coded, inter allgather coded, intra allgather passed)
//
// phase_list.hpp says which lists there are. Without levels all ranks are one group. With levels the ranks of a host
// are one, and then those that lead their hosts; partition p is led on each host by one of its ranks, and one of the
// leaders owns it, as in two_level.cc. A group goes through a routine like this:
//
//   first step    (reduce_scatter, alltoall; reduce, gather) each member sends what it has to the owner of the
//                 partition, or to the leader on its host: a raw sum, or a payload of it. Who gets it keeps its own
//                 raw, and adds all of it up only when something has to be sent on
//   second step   (allgather, broadcast) the owner adds up, takes the mean, and sends it to the group
//   allreduce     a first and a second step, both raw
//   allgather     alone: each member sends a payload to all, and all add them up in the order of the members
//
// With reduce and gather one member is the owner of all partitions of a gradient.
//
// Whatever is raw is in the user's units. Each rank encodes an element of its contribution once at most, so one
// residual is enough. The exception is a last phase that is coded again on all hosts: there all leaders encode the same
// result. They must write the same bytes, so no residual goes into those. What that encoding loses is held back by the
// owner alone, which adds it to its residual.
#include <algorithm>

#include "casync/error.hpp"
#include "routes/flat.hpp"
#include "routes/hosts.hpp"
#include "routes/phase_list.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

bool is_rooted(Routine routine) {
  return routine == Routine::reduce || routine == Routine::gather || routine == Routine::broadcast;
}

/// Whether all leaders encode one result for the ranks of their hosts.
bool ends_encoded_again(const PhaseList& list) {
  return list.front().scope != Scope::flat && list.back().carries == Carries::coded;
}

/// Ranks that go through a routine together.
struct Group {
  std::vector<Rank> ranks;
  std::vector<bool> sums;  ///< what each contributes is a sum over several ranks
  Rank owner = 0;
};

/// Lays out one member's part of one partition.
class Layer {
 public:
  Layer(WorkflowBuilder& builder, const PhaseList& list, std::uint32_t partition)
      : builder_(builder), list_(list), partition_(partition), has_{WorkflowBuilder::input()} {
    if (!builder.identity()) encoded_again_ = ends_encoded_again(list);
  }

  void run() {
    const Rank self = builder_.request().member;
    if (list_.front().scope == Scope::flat) {
      exchange(everybody(), 0, list_.size());
      deliver();
      return;
    }
    const Hosts hosts = ranks_by_host(builder_.request().host_of);
    const auto count = static_cast<std::uint32_t>(hosts.size());
    const std::uint32_t turn = position(is_rooted(list_[0].routine)) / count;
    const std::uint32_t owner = position(std::ranges::any_of(between(), is_rooted, &ListedPhase::routine)) % count;
    Group mates, leaders;
    for (std::uint32_t h = 0; h < count; ++h) {
      const std::vector<Rank>& ranks = hosts[h];
      leaders.ranks.push_back(ranks[turn % ranks.size()]);
      leaders.sums.push_back(ranks.size() > 1);
      if (h == owner) leaders.owner = leaders.ranks.back();
      if (std::ranges::count(ranks, self) == 0) continue;
      mates = {ranks, std::vector<bool>(ranks.size(), false), leaders.ranks.back()};
    }
    first_step(mates, 0);
    if (self == mates.owner) {
      exchange(leaders, 1, list_.size() - 1);
      pass_on(mates, self == leaders.owner);
    } else {
      take_over(mates.owner, list_.size() - 1);
    }
    deliver();
  }

 private:
  /// What a rank has when all of its group have the result.
  struct Result {
    Buffer buffer{};
    bool encoded = false;   ///< it is a payload
    bool is_again = false;  ///< of a result, and not of a sum
  };

  std::span<const ListedPhase> between() const { return std::span(list_).subspan(1, list_.size() - 2); }
  std::uint32_t position(bool rooted) const { return builder_.position(rooted ? 0 : partition_); }

  Group everybody() const {
    Group group;
    for (Rank rank = 0; rank < builder_.members(); ++rank) group.ranks.push_back(rank);
    group.sums.assign(group.ranks.size(), false);
    const auto owners = casync::everybody(builder_.request().host_of);
    group.owner = owners[position(is_rooted(list_[0].routine)) % owners.size()];
    return group;
  }

  bool coded(std::size_t phase) const { return !builder_.identity() && list_[phase].carries != Carries::raw; }
  bool gathers() const { return casync::gathers(builder_.request().codec->info()); }
  bool owns(const Group& group) const { return builder_.request().member == group.owner; }
  Buffer slot(bool encoded) { return encoded ? builder_.payload_slot(partition_) : builder_.raw_slot(partition_); }
  /// Where the result goes that the codec has not seen to the end.
  Buffer place() { return encoded_again_ ? builder_.raw_slot(partition_) : WorkflowBuilder::output(); }
  /// Each phase has a tag of its own.
  std::uint32_t tag(std::size_t phase) const {
    const auto number = static_cast<std::uint32_t>(phase);
    return tag_of(builder_, partition_, number % 2, number / 2);
  }
  void send(std::size_t phase, Rank to, Buffer from, bool needs_credit) {
    builder_.send(partition_, to, tag(phase), from, needs_credit);
  }
  void recv(std::size_t phase, Rank from, Buffer into, bool needs_credit, bool combined = false) {
    builder_.recv(partition_, from, tag(phase), into, needs_credit, combined);
  }

  bool is_raw(Buffer buffer) const { return builder_.is_raw(buffer); }
  bool all_raw() const {
    return std::ranges::all_of(has_, [this](Buffer buffer) { return is_raw(buffer); });
  }
  void compute(Primitive primitive, std::span<const Buffer> sources, ComputeOptions options) {
    options.uncoded = options.encode_to.kind == BufferKind::none &&
                      std::ranges::all_of(sources, [this](Buffer buffer) { return is_raw(buffer); });
    builder_.compute(primitive, partition_, sources, options);
  }

  /// What this rank has, in one buffer that can be sent.
  Buffer contribution(bool encoded) {
    if (encoded) {
      const Buffer to = slot(true);
      compute(has_.size() == 1 && all_raw() ? Primitive::encode : Primitive::merge, has_,
              {.feedback = true, .encode_to = to});
      return to;
    }
    if (has_.size() == 1 && all_raw()) return has_.front();
    compute(Primitive::merge, has_, {.write_to = WorkflowBuilder::output()});
    return WorkflowBuilder::output();
  }

  void first_step(const Group& group, std::size_t phase) {
    if (!owns(group)) {
      send(phase, group.owner, contribution(coded(phase)), true);
      return;
    }
    std::vector<Buffer> all;
    for (std::size_t m = 0; m < group.ranks.size(); ++m) {
      if (group.ranks[m] == group.owner) {
        all.insert(all.end(), has_.begin(), has_.end());
        continue;
      }
      all.push_back(slot(coded(phase)));
      recv(phase, group.ranks[m], all.back(), true, group.sums[m]);
    }
    has_ = std::move(all);
  }

  void second_step(const Group& group, std::size_t phase) {
    if (!owns(group)) {
      take_over(group.owner, phase);
      return;
    }
    result_ = coded(phase) ? encoded_sum() : raw_sum();
    for (const Rank rank : group.ranks) {
      if (rank != group.owner) send(phase, rank, result_.buffer, false);
    }
  }

  void all_to_all(const Group& group, std::size_t phase) {
    const Buffer mine = contribution(coded(phase));
    std::vector<Buffer> all;
    const auto size = group.ranks.size();
    const auto self =
        static_cast<std::size_t>(std::ranges::find(group.ranks, builder_.request().member) - group.ranks.begin());
    for (std::size_t step = 1; step < size; ++step) send(phase, group.ranks[(self + step) % size], mine, true);
    for (std::size_t m = 0; m < size; ++m) {
      all.push_back(m == self ? mine : slot(coded(phase)));
      if (m != self) recv(phase, group.ranks[m], all.back(), true, group.sums[m]);
    }
    has_ = std::move(all);
    result_ = raw_sum();
  }

  /// Takes a group through phases [begin, end). Afterwards all of it have the result.
  void exchange(const Group& group, std::size_t begin, std::size_t end) {
    if (end - begin == 2) {
      first_step(group, begin);
      second_step(group, begin + 1);
    } else if (list_[begin].routine == Routine::allreduce) {
      first_step(group, begin);
      second_step(group, begin);
    } else {
      all_to_all(group, begin);
    }
  }

  /// The mean of what this rank has.
  Result raw_sum() {
    const Buffer to = place();
    compute(Primitive::merge, has_, {.final = true, .deliver = to.kind == BufferKind::output, .write_to = to});
    is_delivered_ = to.kind == BufferKind::output;
    return {to};
  }

  /// The same as a payload. Of a codec that gathers who decodes takes the mean.
  Result encoded_sum() {
    ComputeOptions options{.role = Role::owner, .feedback = true, .final = !gathers(), .encode_to = slot(true)};
    if (!gathers() && !encoded_again_) {
      options.deliver = is_delivered_ = true;
      options.write_to = WorkflowBuilder::output();
    }
    compute(Primitive::merge, has_, options);
    return {options.encode_to, true};
  }

  /// Receives the result that `from` has. What is raw is delivered by its arrival, unless it is encoded again here.
  void take_over(Rank from, std::size_t phase) {
    const bool last = phase + 1 == list_.size();
    result_ = {coded(phase) ? slot(true)
               : last       ? WorkflowBuilder::output()
                            : place(),
               coded(phase), last && encoded_again_};
    recv(phase, from, result_.buffer, false);
    is_delivered_ = result_.buffer.kind == BufferKind::output;
  }

  /// A leader gives the result to the ranks of its host. `holds_back`: it keeps what a payload of the result loses.
  void pass_on(const Group& mates, bool holds_back) {
    const std::size_t phase = list_.size() - 1;
    if (!coded(phase) || encoded_again_) decode();
    if (encoded_again_) {
      const Buffer sources[] = {result_.buffer};
      const ComputeOptions options{.role = Role::owner,
                                   .deliver = true,
                                   .again = true,
                                   .holds_back = holds_back,
                                   .encode_to = slot(true),
                                   .write_to = WorkflowBuilder::output()};
      compute(Primitive::encode, sources, options);
      is_delivered_ = true;
      result_ = {options.encode_to, true, true};
    }
    for (const Rank rank : mates.ranks) {
      if (rank != mates.owner) send(phase, rank, result_.buffer, false);
    }
  }

  /// The result becomes raw, if it is not.
  void decode() {
    if (!result_.encoded) return;
    if (is_delivered_) {  // by who has encoded it
      result_ = {WorkflowBuilder::output()};
      return;
    }
    const Buffer to = result_.is_again ? WorkflowBuilder::output() : place();
    const Buffer sources[] = {result_.buffer};
    compute(Primitive::decode, sources,
            {.final = gathers() && !result_.is_again,
             .deliver = to.kind == BufferKind::output,
             .again = result_.is_again,
             .write_to = to});
    is_delivered_ = to.kind == BufferKind::output;
    result_ = {to};
  }

  void deliver() {
    if (!is_delivered_) decode();
  }

  WorkflowBuilder& builder_;
  const PhaseList& list_;
  std::uint32_t partition_;
  std::vector<Buffer> has_;  // what this rank has to add up, in the order in which it adds it up
  Result result_{};
  bool is_delivered_ = false;
  bool encoded_again_ = false;  // the last phase is
};

class Phases final : public Route {
 public:
  explicit Phases(PhaseList list) : name_(text_of(list)), list_(std::move(list)) {}

  std::string_view name() const override { return name_; }
  std::vector<Phase> phases() const override {
    std::vector<Phase> phases;
    for (const ListedPhase& phase : list_) phases.push_back({phase.scope, phase.routine});
    return phases;
  }

  std::optional<std::string> why_unsupported(const RouteRequest& request) const override {
    const CodecInfo& codec = request.codec;
    if (auto why = why_not_executed(list_)) return why;
    if (merges_payloads(codec)) return detail::concat("codec ", codec.spec, " merges payloads in rounds");
    if (ends_encoded_again(list_) && codec.feedback == Feedback::own) {
      return detail::concat("codec ", codec.spec, " keeps more of a gradient than a residual, and phase ",
                            list_.size() - 1, " encodes what is a result already");
    }
    return why_not_in_parts(request);
  }

  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override {
    return is_flat() ? everybody(host_of) : owners_by_turns(ranks_by_host(host_of));
  }
  bool has_one_owner() const override { return std::ranges::any_of(list_, is_rooted, &ListedPhase::routine); }
  bool merges_at_once() const override { return false; }

  void build(WorkflowBuilder& builder) const override {
    const bool adds_up_first = !is_flat() && (list_[0].carries == Carries::raw || builder.identity());
    if (adds_up_first)
      builder.set_contributions(static_cast<std::uint32_t>(ranks_by_host(builder.request().host_of).size()));
    for (const std::uint32_t p : builder.sent()) Layer(builder, list_, p).run();
  }

 private:
  bool is_flat() const { return list_.front().scope == Scope::flat; }

  std::string name_;
  PhaseList list_;
};

}  // namespace

std::shared_ptr<const Route> make_phases(std::string_view text) {
  auto list = parse_phases(text);
  if (!list) return nullptr;
  if (const auto why = why_not_valid(*list)) throw InvalidArgument(detail::concat("the phases of a topology: ", *why));
  return std::make_shared<Phases>(std::move(*list));
}

}  // namespace casync
