#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "bindings/bound_session.hpp"
#include "bindings/dispatcher.hpp"
#include "casync/completion.hpp"
#include "casync/error.hpp"

/// Completions that are Python functions: what ended an operation is told by the session's Dispatcher.
namespace casync {

pybind11::object to_python(const Gathered& gathered);

/// Calls `function(error, gathered)` when an operation is over.
class CompletionCall final : public Dispatcher::Call {
 public:
  explicit CompletionCall(pybind11::object function) : function_(std::move(function)) {}
  void ended(Outcome&& outcome) { outcome_ = std::move(outcome); }
  void run() override;

 private:
  pybind11::object function_;
  Outcome outcome_;
};

/// Several operations with one completion: calls `function(error)` once, when all that were submitted with it are over
/// and it was closed. Each takes a switch of threads less than with a completion of its own. `error` is the first,
/// or the first that ended the session.
class CompletionGroup {
 public:
  CompletionGroup(BoundSession& session, pybind11::object function);
  ~CompletionGroup() { close(); }
  CompletionGroup(const CompletionGroup&) = delete;
  CompletionGroup& operator=(const CompletionGroup&) = delete;

  /// For one more operation, which is not submitted if `submit` throws. With the GIL.
  template <typename Submit>
  void add(const Submit& submit) {
    if (is_closed_) throw InvalidArgument("these operations were closed: no more can be submitted with them");
    state_->left.fetch_add(1);
    try {
      submit(Completion([state = state_](Outcome&& outcome) { state->ended(outcome.failure); }));
    } catch (...) {
      state_->left.fetch_sub(1);  // not the last: this object has one
      throw;
    }
  }
  /// No more are submitted. Calls the function if all are over. With the GIL.
  void close();
  /// Makes progress until all are over, and then calls the function if nobody else does. After `close`. With the GIL,
  /// which it lets go of.
  void wait();

 private:
  /// Who calls the function: the dispatcher, unless somebody waits, which spares a switch of threads.
  enum class Caller : std::uint8_t { dispatcher, waiter, settled };
  struct Progress {
    std::atomic<bool> done{false};
    std::atomic<Caller> caller{Caller::dispatcher};
  };
  struct State final : Dispatcher::Call {
    void ended(const std::exception_ptr& failure);
    void run() override;

    pybind11::object function;
    Dispatcher* dispatcher = nullptr;  // the session's, which outlives every operation
    std::atomic<std::size_t> left{1};  // operations, and the CompletionGroup until it is closed
    std::mutex mutex;
    std::exception_ptr first;  // with the mutex
    std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  };

  void leave_to_dispatcher();

  BoundSession& session_;
  State* state_;  // until it is over: then it is its caller's
  bool is_closed_ = false;
  std::shared_ptr<Progress> progress_;
};

}  // namespace casync
