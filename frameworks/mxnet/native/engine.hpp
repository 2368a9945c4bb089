#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

/// What glue needs of MXNet's C interface (1.9), found in the library that the process has loaded.
namespace casync::mxnet {

using Array = void*;  ///< an NDArrayHandle

/// What the engine gives an asynchronous function: to be called once, from any thread, when the operation is over. The
/// error is a dmlc::Error there, a std::runtime_error without members of its own; the engine copies it.
struct OnComplete {
  void (*call)(void* engine, void* operation, const std::runtime_error* error) = nullptr;
  void* engine = nullptr;
  void* operation = nullptr;

  void operator()(const std::runtime_error* error) const { call(engine, operation, error); }
};

/// The engine's Context: the host's memory.
struct Context {
  std::int32_t device_type = 1;
  std::int32_t device_id = 0;
};

struct Engine {
  using Function = void (*)(void* context, void* on_complete, void* user);
  using Deleter = void (*)(void* user);

  int (*push)(Function, void* user, Deleter, const Context*, Array* reads, int read_count, Array* writes,
              int write_count, const int* property, int priority, const char* name, bool is_wait) = nullptr;
  int (*share)(Array from, Array* to) = nullptr;  ///< another handle of the same memory
  int (*free)(Array) = nullptr;
  int (*data)(Array, void** address) = nullptr;
  const char* (*error_text)() = nullptr;

  /// From what dlopen gave for libmxnet. Throws std::runtime_error for a function that is not there.
  static Engine in(void* library);
};

/// The engine's property of operations that a queue of its own orders by priority.
inline constexpr int kPrioritized = 3;

/// A handle of ours, which keeps the memory alive whatever the program does with its own.
class Shared {
 public:
  Shared(const Engine& engine, Array from) : free_(engine.free) {
    if (from != nullptr && engine.share(from, &array_) != 0) throw std::runtime_error(engine.error_text());
  }
  Shared(Shared&& other) noexcept : free_(other.free_), array_(other.array_) { other.array_ = nullptr; }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Shared& operator=(Shared&&) = delete;
  ~Shared() {
    if (array_ != nullptr) free_(array_);
  }

  Array get() const { return array_; }

 private:
  int (*free_)(Array);
  Array array_ = nullptr;
};

}  // namespace casync::mxnet
