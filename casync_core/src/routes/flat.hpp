#pragma once

#include <cstdint>
#include <vector>

#include "casync/route.hpp"
#include "casync/workflow_builder.hpp"

namespace casync {

/// Builds this member's part of one partition that goes over a flat route: between all members, or between those that
/// lead a host each. They are numbered from 0, in the order in which their contributions are added.
class PartitionBuilder {
 public:
  struct Member {
    Rank rank = 0;
    bool sums = false;  ///< what it contributes is a sum over several ranks
  };

  PartitionBuilder(WorkflowBuilder& builder, std::uint32_t partition, std::vector<Member> members, std::uint32_t owner,
                   std::vector<Buffer> local_contributions);

  std::uint32_t size() const { return static_cast<std::uint32_t>(members_.size()); }
  std::uint32_t self() const { return self_; }
  std::uint32_t owner() const { return owner_; }
  bool sums(std::uint32_t member) const { return members_[member].sums; }
  bool identity() const { return builder_.identity(); }
  bool gathers() const { return casync::gathers(builder_.request().codec->info()); }
  bool merges_payloads() const { return casync::merges_payloads(builder_.request().codec->info()); }
  std::uint32_t rounds() const { return static_cast<std::uint32_t>(builder_.request().codec->info().rounds.size()); }
  /// Raw elements that add up to what this member contributes.
  const std::vector<Buffer>& local_contributions() const { return local_contributions_; }

  Buffer payload_slot(std::uint32_t round = 0);
  Buffer nonzeros_slot() { return builder_.nonzeros_slot(partition_); }
  Buffer part_slot(std::uint32_t round, const Range& elements);
  std::int64_t elements_of(Buffer payload) const { return builder_.elements_of(payload); }
  void compute(Primitive primitive, const std::vector<Buffer>& sources, const ComputeOptions& options);
  /// Encodes what this member contributes in a round; without a codec adds it up. Returns where it is.
  Buffer contribution(std::uint32_t round = 0, Buffer previous = {});
  /// `way` tells two messages of a round between the same members apart: 0 or 1.
  void send(std::uint32_t to, std::uint32_t way, Buffer from, bool needs_credit, std::uint32_t round = 0);
  void recv(std::uint32_t from, std::uint32_t way, Buffer into, bool needs_credit, std::uint32_t round = 0,
            bool combined = false);
  /// Decodes what all members have, a payload of each round, into the user's result. Without a codec it is there
  /// already.
  void deliver(const std::vector<Buffer>& payloads);

 private:
  WorkflowBuilder& builder_;
  std::uint32_t partition_;
  std::vector<Member> members_;
  std::uint32_t self_ = 0;
  std::uint32_t owner_;
  std::vector<Buffer> local_contributions_;
};

/// Decodes into the user's result, for a member that has received what the others decode: a payload of each round.
void deliver(WorkflowBuilder& builder, std::uint32_t partition, const std::vector<Buffer>& payloads);

/// Names a message among those between two members: `way` is 0 or 1.
std::uint32_t tag_of(const WorkflowBuilder& builder, std::uint32_t partition, std::uint32_t way, std::uint32_t round);

/// A route on which all members do the same by turns, so that it can go between all ranks as well as between the
/// leaders of hosts.
class FlatRoute : public Route {
 public:
  /// Lays out one partition. Every member ends with the user's result, and with what this returns: the payloads that
  /// all of them decoded, one of each round, if `ends_encoded`, else the result itself.
  virtual std::vector<Buffer> build_partition(PartitionBuilder& builder) const = 0;
  virtual bool ends_encoded(const CodecInfo& codec) const = 0;
  /// What it does, whoever its members are.
  virtual std::vector<Routine> routines() const = 0;

  std::vector<Phase> phases() const final;
  void build(WorkflowBuilder& builder) const final;
};

}  // namespace casync
