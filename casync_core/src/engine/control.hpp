#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/error.hpp"
#include "casync/plan.hpp"
#include "engine/op_set.hpp"

/// The messages between the Engines of a job. Each struct has `put`, appending its bytes, and a `get_` that throws
/// CorruptPayload for bytes that are not one. `root` below is member 0, which keeps the tensor table.
namespace casync {

/// How an operation ended, or what ended it. Numbers are on the wire: append only.
enum class Status : std::uint8_t {
  ok = 0,
  mismatch = 1,
  timeout = 2,
  aborted = 3,
  peer_failure = 4,
  corrupt = 6,
};

enum class ControlKind : std::uint8_t {
  request,
  ready,
  agreement,
  start,
  refusal,
  credit,
  ping,
  pong,
  abort,
  bye,
  links,
  costs,
  submit_for_joined,
  moves,
};

using Bytes = std::vector<std::byte>;

ControlKind kind_of(std::span<const std::byte> message);

/// Which values a rank keeps that its codec has settled with the others (Codec::agreed): settled_by(codec), 0 for none.
using Settled = std::uint32_t;
Settled settled_by(std::string_view codec);

/// Any rank to root: this rank submitted `name` for the `sequence`-th time, and these are its terms.
struct Request {
  std::string name;
  std::uint32_t sequence = 0;
  Signature signature;
  std::string site;  ///< where in the user's program, e.g. "train.py:41"
  Settled settled = 0;
  std::uint32_t step = 0;              ///< as this rank counts the gradient's steps, those before a checkpoint included
  std::vector<std::int64_t> splits{};  ///< alltoall: rows for each member
  std::uint32_t evictions = 0;  ///< how many operations this rank has evicted by now: of those it says Ready no more
};
/// Any rank to root: submitted again, each on the terms of one of `ops`.
struct Ready {
  OpSet ops{};
  std::uint32_t sequence = 0;
  std::uint32_t wants_start = 1;  ///< whether the sender waits for a Start: an eager run has begun there already
  Settled settled = 0;
  std::uint32_t step = 0;
  bool by_lane = false;  ///< its messages can go by the lane of the sender's device
};
/// Root to all: every rank agreed on `name`; it is `op` from now on, with this plan; begin.
struct Agreement {
  std::string name;
  std::uint32_t sequence = 0;
  std::uint32_t op = 0;
  GradientPlan plan;
  std::vector<std::int64_t> rows;  ///< allgather: rows per member; alltoall: rows of each member for the one addressed;
                                   ///< join: the member that was last
  Settled settled = 0;             ///< what all ranks say; 0 where they differ
  std::uint32_t step = 0;          ///< the highest count
};
/// Root to all: every rank is ready for this run of each of `ops`; begin them, by their numbers. Agreements and starts
/// reach all ranks in one order.
struct Start {
  OpSet ops{};
  std::uint32_t sequence = 0;
  Settled settled = 0;     ///< what all ranks say; 0 where they differ
  std::uint32_t step = 0;  ///< the highest count
  bool by_lane = false;    ///< whether all say it
};
/// Root to all: this run of `name` will not happen.
struct Refusal {
  std::string name;
  std::uint32_t sequence = 0;
  Status status = Status::mismatch;
  std::string text;
  ErrorFacts facts{};  ///< only kind and peer: the rest is the receiver's own
  /// Per member, whom it blames, where that is not one peer for all. Not on the wire: `facts` has the addressed one's.
  std::vector<std::uint32_t> peers{};
};
/// Root to a rank that has joined: submit this run of `name` in the place of your program, with zeros. `refused`: only
/// count it, for it will not happen.
struct SubmitForJoined {
  std::string name;
  std::uint32_t sequence = 0;
  bool refused = false;
  Signature signature;
};
/// To all, now and then: this run, which takes long, moves at the sender. It must not be given up.
struct Moves {
  std::uint32_t op = 0;
  std::uint32_t sequence = 0;
};
/// To a peer: you may send what lands in my memory for tickets below this one, counted over all begun partitions.
struct Credit {
  std::uint64_t limit = 0;
};
/// Between the coordinators of two ranks: bytes that only the LinkPolicy reads.
struct Links {
  std::vector<std::byte> bytes;
};
/// Any rank to root, once: bytes that only Planning reads.
struct Costs {
  std::vector<std::byte> bytes;
};
/// To all: the session is over. In events and actions: how an operation or the session failed.
struct Abort {
  Status status = Status::aborted;
  std::string text;
  bool left = false;   ///< the sender has shut down: what can end without it may still do so
  ErrorFacts facts{};  ///< but for `rank`, which is not on the wire: who raises it fills it in
};

/// Whether both say the same, of whichever operations.
bool same_terms(const Ready& a, const Ready& b);
bool same_terms(const Start& a, const Start& b);

void put(Bytes& out, const Request& message);
void put(Bytes& out, const Ready& message);
void put(Bytes& out, const Agreement& message);
void put(Bytes& out, const Start& message);
void put(Bytes& out, const Refusal& message);
void put(Bytes& out, const SubmitForJoined& message);
void put(Bytes& out, const Moves& message);
void put(Bytes& out, const Credit& message);
void put(Bytes& out, const Links& message);
void put(Bytes& out, const Costs& message);
void put(Bytes& out, const Abort& message);
void put_plain(Bytes& out, ControlKind kind);  ///< ping, pong, bye: nothing but the kind

Request get_request(std::span<const std::byte> message);
Ready get_ready(std::span<const std::byte> message);
Agreement get_agreement(std::span<const std::byte> message);
Start get_start(std::span<const std::byte> message);
Refusal get_refusal(std::span<const std::byte> message);
SubmitForJoined get_submit_for_joined(std::span<const std::byte> message);
Moves get_moves(std::span<const std::byte> message);
Credit get_credit(std::span<const std::byte> message);
Links get_links(std::span<const std::byte> message);
Costs get_costs(std::span<const std::byte> message);
Abort get_abort(std::span<const std::byte> message);

/// The part of a Request that means something before it is submitted: name, signature and site. Of event logs.
void put_definition(Bytes& out, const Request& definition);
Request get_definition(std::span<const std::byte> bytes);

/// In actions only: an operation waits for long.
struct Stall {
  std::string name;
  OpKind kind = OpKind::allreduce;
  std::vector<Rank> missing{};  ///< members that have not submitted it
  std::string text{};
};
}  // namespace casync
