#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "casync/transport.hpp"
#include "engine/engine.hpp"
#include "executor/frames/framer.hpp"
#include "executor/inbox.hpp"
#include "executor/measure/counters.hpp"
#include "executor/measure/gradient_counters.hpp"
#include "executor/measure/meters.hpp"
#include "executor/memory/memory.hpp"
#include "executor/operations.hpp"
#include "executor/run/workers.hpp"
#include "plan/planning.hpp"

namespace casync {

/// Carries out what the Engine decides: the thin layer of effects that both executors share. One turn takes what
/// happened (submissions, finished jobs, the network), lets the Engine decide, and starts what it decided. Plans are
/// made between two events, never within one. The thread that holds the progress role calls everything here.
class Driver final : private ActionSink, private TransportSink, private Framer::Receiver {
 public:
  struct Callbacks {
    std::function<void(Operation&)> finished;  ///< the operation's outcome is filled in
    std::function<void(const Stall&)> report;  ///< for the user's log
    /// Submit this in the place of the program, which has joined; not before the turn is over.
    std::function<void(const Request&)> stand_in;
  };
  struct Options {
    std::uint32_t session_tag = 0;
    bool checksums = true;               ///< of encoded bodies; false, in virtual time: they hold nothing
    std::vector<Observer*> observers{};  ///< outlive the driver
  };

  /// Where jobs run besides the thread that drives; both outlive the driver.
  struct ComputeBackends {
    Workers& pool;
    Workers* planner = nullptr;  ///< what the planning computes; null: the thread that drives does, at once
    Stream* stream = nullptr;    ///< null: there is none
    DeviceLane* lane = nullptr;  ///< likewise
  };

  Driver(Engine& engine, Transport& transport, ComputeBackends backends, Planning& planning, Options options,
         Callbacks callbacks);
  ~Driver() override;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// A turn: takes what came, which is empty then, polls the network, and carries on as far as possible. Returns
  /// whether anything had come.
  ///
  /// Whatever is thrown in it ends the session, on every rank. It throws only if the session cannot even be ended in
  /// good order: then `collapse` is left.
  bool turn(Inbox& came, Nanoseconds now);
  /// A turn of a rank that has nothing new of its own.
  bool turn(Nanoseconds now);
  /// The last turn, and what it was called with, took so long of a processor. While it `measures`.
  void turn_took(Nanoseconds worked) { meters_.turn_took(worked); }
  bool measures() const { return meters_.wanted(); }
  /// How long the thread with the role may sleep after a turn that brought nothing. The last news came at `last_news`.
  Nanoseconds sleep_time(Nanoseconds now, Nanoseconds last_news) const;

  /// Ends all that is outstanding, and from now on whatever is submitted, without the Engine. Tells the peers why, if
  /// that still can be. `came`: of the turn that has thrown. No job is at work any more, and no transfer afterwards:
  /// `stop` sees to that when the peers have been told.
  void collapse(const std::string& why, Inbox& came, const std::function<void()>& stop);
  bool collapsed() const { return collapsed_.has_value(); }

  // The parts of a turn.
  void define(std::uint32_t registration, const Request& definition);
  void forget(std::uint32_t registration, const Definition& definition);
  void submit(std::uint32_t registration, Operation* operation);
  void abort(const std::string& why);
  void finished(std::unique_ptr<Job> job, std::string error);  ///< a job came back

  /// From now on operations may run on `stream`, and their messages go by `lane` (null: there is none), as soon as it
  /// is ready. Both outlive the driver. Once.
  void add_stream(Stream& stream, DeviceLane* lane);
  void shutdown();
  /// Planning may make other plans now for what has one.
  void plans_changed();

  Memory& memory() { return memory_; }
  /// What this rank sent and received in all.
  TransportCounters traffic() const { return framer_.counters(); }
  const Operations& operations() const { return operations_; }
  /// Any thread.
  const Counters& tally() const { return tally_; }
  /// Any thread.
  const GradientCounters& gradients() const { return gradients_; }

  /// `observer` sees all that happens from now on, until it is told to look away.
  void watched_by(Observer& observer) { options_.observers.push_back(&observer); }
  void unwatched_by(Observer& observer) { std::erase(options_.observers, &observer); }

 private:
  void emit(const Action& action) override;
  void on_head(Rank peer, std::span<const std::byte> head) override;
  void on_sent(std::uint64_t id) override;
  void on_body(std::uint64_t id) override;
  void on_peer_down(Rank peer, std::string_view why) override;
  void on_control(Rank peer, std::span<const std::byte> message) override;
  void on_lane(Rank peer, std::span<const std::byte> message) override;
  void on_message(Rank peer, const MessageKey& key, std::uint64_t message_id) override;
  void on_placed(std::uint64_t id, std::size_t bytes) override;
  void on_corrupt(Rank peer, std::string_view why, std::optional<std::uint64_t> id) override;
  void on_body_begun(Rank peer) override;
  void on_body_done(Rank peer, std::size_t bytes) override;

  template <typename Work>
  void guarded(const Work& work);
  void take(Inbox::Item& item);
  void prepare_submit(Operation& operation);
  bool carry_on();
  void end(Operation& operation, const Abort& why);
  void end_strays();
  void apply(const Event& event);
  bool poll_network();
  bool poll_lane();
  void look_at_flows();
  void give_up(Abort why);
  void start(std::unique_ptr<CodecTrial> trial);
  void start(std::unique_ptr<PlanWork> work);
  void finished(PlanWork& work, const std::string& error);
  void try_codecs(const Operation& operation);
  void ping();
  void plan();
  void hear_costs(Rank member, const Bytes& costs);
  bool settle();
  void on(const action::Begin& action);
  void on(const action::Reserve& action);
  void on(const action::Run& action);
  void on(const action::Send& action);
  void on(const action::SendBulk& action);
  void on(const action::Accept& action);
  void on(const action::Drop& action);
  void on(const action::Release& action);
  void on(const action::Finish& action);
  void on(const action::Control& action);
  void on(const action::Report& action);
  void on(const action::PlanWanted& action);
  void on(const action::CostsOf& action);
  void on(const action::StandInFor& action);
  ComputeContext context_of(std::uint32_t instance);
  std::string noticed() const;
  Rank self() const { return transport_.rank(); }
  Abort failure_of(const Job& job, std::string error);
  void note_nonfinite(const TaskGraph& graph, const Job& job);
  void run_at_once();
  std::unique_ptr<Job> new_job();

  Engine& engine_;
  Transport& transport_;
  ComputeBackends backends_;
  Planning& planning_;
  Options options_;
  Callbacks callbacks_;
  Framer framer_;
  Operations operations_;
  Memory memory_;
  Counters tally_;
  GradientCounters gradients_;
  Nanoseconds now_ = 0;
  std::vector<std::uint64_t> flowed_;  // per peer, at the last look
  Nanoseconds next_flows_ = 0;
  std::size_t jobs_out_ = 0;        // compute tasks that have not come back
  bool has_thrown_ = false;         // something has: the Engine may have lost operations
  std::optional<Abort> collapsed_;  // why
  Meters meters_;
  std::vector<Event> pending_;  // events that follow from actions of this turn
  // What the Engine wants of the planning, until it is through with its event.
  std::vector<action::PlanWanted::Gradient> wanted_;
  std::vector<std::pair<Rank, Bytes>> costs_;
  std::vector<std::pair<const PlanWork*, action::PlanWanted::Gradient>> waiting_;  // for what is computed first
  std::optional<Abort> corrupt_;               // what a peer sent that cannot be, until the Engine is told
  std::vector<std::unique_ptr<Job>> at_once_;  // jobs that the Engine wants to run before anything else
  std::vector<std::unique_ptr<Job>> spare_jobs_;
  std::vector<std::pair<Rank, Bytes>> lane_heard_;  // what peers' lanes said before this rank had one
  std::vector<std::string> errors_;                 // scratch
};

}  // namespace casync
