#include "push.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "casync/error.hpp"

namespace casync::mxnet {
namespace {

casync_error number_of(ErrorKind kind) { return static_cast<casync_error>(kind) + 1; }

/// "casync.<number>: <text>" and what the error is about, which frameworks/mxnet/failures.py reads. All in one line,
/// with unit separators between, because MXNet takes lines of a text for those of a stack trace.
std::string described(casync_error error, const char* text, const char* tensor, std::int64_t peer) {
  std::string all = std::string(text) + "\n" + tensor + "\n" + std::to_string(peer);
  std::ranges::replace(all, '\n', '\x1f');
  return "casync." + std::to_string(error) + ": " + all;
}

}  // namespace

Push::Push(const casync_c_api& casync, const Engine& engine, std::int32_t process_set, const void* session,
           std::span<const casync_mxnet_operation> operations)
    : casync_(casync), engine_(engine), process_set_(process_set), session_(session), left_(operations.size() + 1) {
  for (const casync_mxnet_operation& each : operations) {
    operations_.push_back({this, each, Shared(engine, each.input), Shared(engine, each.output),
                           std::vector<std::int64_t>(each.splits, each.splits + each.ranks)});
  }
}

bool Push::give(Push* push, int priority, const char* name) {
  std::vector<Array> reads;
  std::vector<Array> writes;
  for (const Operation& operation : push->operations_) {
    const bool is_in_place = operation.output.get() == nullptr;
    if (!is_in_place) reads.push_back(operation.input.get());
    writes.push_back(is_in_place ? operation.input.get() : operation.output.get());
  }
  static constexpr Context kHost;
  const auto drop = [](void* over) { delete static_cast<Push*>(over); };
  return push->engine_.push(run, push, drop, &kHost, reads.data(), static_cast<int>(reads.size()), writes.data(),
                            static_cast<int>(writes.size()), &kPrioritized, priority, name, false) == 0;
}

void Push::run(void*, void* on_complete, void* push) {
  auto& self = *static_cast<Push*>(push);
  self.on_complete_ = *static_cast<const OnComplete*>(on_complete);
  self.start();
}

void Push::start() {
  casync_session* const session = casync_.hold(process_set_);
  for (Operation& operation : operations_) {
    if (session != nullptr && session == session_) {
      submit(session, operation, &operation != &operations_.back());
    } else {
      fail(described(number_of(ErrorKind::shut_down),
                     "CaSync was shut down before MXNet's engine came to this operation", "", -1));
      ended();
    }
  }
  if (session != nullptr) casync_.release(session);
  ended();
}

void Push::submit(casync_session* session, Operation& operation, bool more) {
  const casync_mxnet_operation& given = operation.given;
  casync_operation wanted{};
  wanted.tensor = given.tensor;
  wanted.more = more ? 1 : 0;
  wanted.rows = given.rows;
  wanted.splits = operation.splits.data();
  wanted.ranks = operation.splits.size();
  try {
    wanted.input = address(operation.input);
    if (given.gathered < 0)
      wanted.output = given.output == nullptr ? address(operation.input) : address(operation.output);
  } catch (const std::runtime_error& error) {
    fail(error.what());
    return ended();
  }
  casync_error error = CASYNC_OK;
  if (given.is_told != 0) {
    error = casync_.set_optimizer(session, given.tensor, given.lr, given.momentum, given.nesterov, given.loss_scale);
  }
  if (error == CASYNC_OK) error = casync_.submit(session, &wanted, completed, &operation);
  if (error == CASYNC_OK) return;
  fail(described(error, casync_.error_text(), "", -1));
  ended();
}

/// Where the values are. Only now: the engine allocates memory when it computes them, and before that this would too.
void* Push::address(const Shared& array) {
  void* found = nullptr;
  if (engine_.data(array.get(), &found) != 0) throw std::runtime_error(engine_.error_text());
  return found;
}

void Push::completed(void* operation, const casync_outcome* outcome) {
  const Operation& self = *static_cast<const Operation*>(operation);
  Push& push = *self.push;
  if (outcome->error != CASYNC_OK) {
    push.fail(described(outcome->error, outcome->text, outcome->tensor, outcome->peer));
  } else if (self.given.gathered >= 0 && outcome->bytes != static_cast<std::size_t>(self.given.gathered)) {
    push.fail(described(number_of(ErrorKind::internal), "the result has not the size that was announced", "", -1));
  } else if (self.given.gathered > 0) {
    try {
      std::memcpy(push.address(self.output), outcome->data, outcome->bytes);
    } catch (const std::runtime_error& error) {
      push.fail(error.what());
    }
  }
  push.ended();
}

void Push::fail(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = text;
}

/// The last one tells the engine, which then deletes the push.
void Push::ended() {
  if (left_.fetch_sub(1) != 1) return;
  const OnComplete on_complete = on_complete_;
  if (error_.empty()) return on_complete(nullptr);
  const std::runtime_error error(error_);
  on_complete(&error);
}

}  // namespace casync::mxnet
