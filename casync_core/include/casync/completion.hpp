#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

/// What is called when an operation is over, in place of a thread that waits for it.
///
///     session.submit(registration, input, output, [gate](Outcome&& outcome) { gate->open(outcome.failure); });
namespace casync {

/// The result of an allgather, an alltoall or a join.
struct Gathered {
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> rows;  ///< how many rows each rank gave; join: one number, the rank that joined last;
                                   ///< empty after a failure
};

/// How an operation ended.
struct Outcome {
  std::exception_ptr failure;  ///< what `Session::collect` would throw; null: it is done
  Gathered result;
};

/// A function that takes an Outcome and throws nothing: an exception ends the process. It is kept in place, so that a
/// submit allocates nothing for it: it has the size of two pointers at most, and is copied as bytes.
class Completion {
 public:
  Completion() = default;
  template <typename Function>
    requires(!std::is_same_v<Function, Completion> && std::is_invocable_v<Function&, Outcome&&>)
  Completion(Function function) {  // not explicit: a lambda is one
    static_assert(sizeof(Function) <= sizeof(kept_) && alignof(Function) <= alignof(void*), "keep a pointer to it");
    static_assert(std::is_trivially_copyable_v<Function>, "keep a pointer to it");
    ::new (kept_.data()) Function(function);
    call_ = [](void* kept, Outcome&& outcome) noexcept { (*static_cast<Function*>(kept))(std::move(outcome)); };
  }

  explicit operator bool() const { return call_ != nullptr; }
  void operator()(Outcome&& outcome) noexcept { call_(kept_.data(), std::move(outcome)); }

 private:
  void (*call_)(void* kept, Outcome&& outcome) noexcept = nullptr;
  alignas(void*) std::array<std::byte, 2 * sizeof(void*)> kept_;  // read only after it was written
};

}  // namespace casync
