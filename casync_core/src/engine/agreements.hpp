#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/least_used.hpp"
#include "engine/control.hpp"
#include "task/task_graph.hpp"

namespace casync {

/// Makes a codec from its spec: make_codec, or something in its place.
using CodecMaker = std::function<std::shared_ptr<const Codec>(std::string_view)>;

/// What the ranks have agreed on. An operation has a number, the same on every rank, a plan, and the task graph of this
/// rank's workflow. Messages may overtake the agreement, or this rank's submit: those are kept here until their run
/// begins. Pure.
class Agreements {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  struct Early {  ///< a message whose run has not begun here
    Rank peer;
    std::uint32_t sequence;
    std::uint32_t tag;
    std::uint64_t message_id;
  };
  struct Op {
    std::uint32_t name = kNone;  ///< as Submissions numbers it; kNone: not agreed, there are only messages
    Signature signature;
    GradientPlan plan;
    std::vector<std::shared_ptr<const TaskGraph>> graphs;    ///< of each turn of the plan's period
    std::vector<std::shared_ptr<const TaskGraph>> settling;  ///< which settle the codec's values first; empty if it
                                                             ///< has none
    Settled settled = 0;                                     ///< what a rank says that keeps them
    bool eager = false;    ///< so small that it is sent before the peers have submitted theirs
    bool evicted = false;  ///< a run that is submitted now has to be agreed on
    std::vector<Early> early;
    std::optional<LeastUsed::Place> place{};  ///< among those that are kept; nothing: it is none of them

    /// In which turn of the plan a run of this step is: an index of the graphs.
    std::size_t turn(std::uint32_t step) const { return graphs.size() > 1 ? turn_of(plan, step) : 0; }
  };

  Agreements(std::uint32_t member, std::vector<std::uint32_t> host_of, std::size_t inline_bytes,
             CodecMaker codecs = make_codec, LeastUsed::Limits kept = {});

  /// Whether an operation of this kind is agreed on once for all of its runs. An allgather and an alltoall are not:
  /// their rows may change.
  static bool lasts(OpKind kind) { return reduces(kind) || kind == OpKind::broadcast; }

  /// All ranks agree on `agreement`; here its tensor is `name`, and this rank gives `splits` to the others (alltoall).
  const Op& agree(const Agreement& agreement, std::uint32_t name, const Signature& signature,
                  const std::vector<std::int64_t>& splits = {});
  /// Null if `op` was never agreed, or is forgotten.
  const Op* find(std::uint32_t op) const;
  /// An agreement on `op`, of the tensor with this hash, as all ranks hear them in one order.
  void use(std::uint32_t op, std::uint64_t name_hash);
  /// A start, likewise. False: it is not kept.
  bool use_again(std::uint32_t op);
  /// The next operation that is kept no longer, after a use.
  std::optional<std::uint32_t> evict();
  /// `op` was agreed on anew for a run that had begun here, or was over. A rank that knows it no more, or by another
  /// plan, will ask.
  void restore(std::uint32_t op, const GradientPlan& plan);
  /// An operation that is not kept, and of which nothing is under way, is forgotten; but not its early messages.
  void erase(std::uint32_t op);
  /// Whether there are operations of different priorities.
  bool ranked() const { return ranked_; }

  void keep(std::uint32_t op, const Early& message) { ops_[op].early.push_back(message); }
  /// The messages kept for a run, which are kept no longer.
  std::vector<Early> claim(std::uint32_t op, std::uint32_t sequence);
  /// Forgets those for the runs of tensor `name` up to `sequence`; returns their message ids.
  std::vector<std::uint64_t> forget(std::uint32_t name, std::uint32_t sequence);
  std::vector<std::uint64_t> forget_all();

 private:
  std::shared_ptr<const TaskGraph> make_graph(const Agreement& agreement, const Signature& signature,
                                              const std::vector<std::int64_t>& splits, std::uint32_t turn,
                                              bool settles);

  std::uint32_t member_;
  std::vector<std::uint32_t> host_of_;
  std::size_t inline_bytes_;
  CodecMaker codecs_;
  std::shared_ptr<const Codec> none_, nonzeros_, parts_, hold_;  // of all graphs: what takes no payload
  std::unordered_map<std::uint32_t, Op> ops_;
  std::optional<std::int32_t> priority_;  // of the first that was agreed on
  bool ranked_ = false;
  /// All that a graph follows from in this world, of the kinds that last. Gradients that are alike share one:
  /// of many small ones it then stays in the cache.
  using GraphKey =
      std::tuple<OpKind, std::int64_t, std::int64_t, DType, std::string, ReduceOp, std::string, std::uint32_t,
                 std::uint32_t, std::uint32_t, Coefficient, std::uint32_t, bool, std::uint32_t, bool, bool, bool>;
  std::map<GraphKey, std::weak_ptr<const TaskGraph>> graphs_;
  std::size_t graphs_most_ = 256;  // at so many it is looked which of them are used no more
  LeastUsed kept_;
};

}  // namespace casync
