#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/least_used.hpp"
#include "common/numbered.hpp"
#include "executor/operation.hpp"
#include "task/task_graph.hpp"

namespace casync {

/// What a program has defined, by the numbers that it submits them by: the last used ones, as LeastUsed says. What has
/// an operation stays, and what is new stays until kPatience others were defined: its program is about to submit it,
/// perhaps with thousands of others outstanding. Each rank forgets for itself: a name is then agreed on as before.
/// Pure.
class Definitions {
 public:
  /// How its next run is computed on a device, as its last one's plan says.
  struct ByPlan {
    std::shared_ptr<const TaskGraph> graph;
    bool on_stream = false;
    bool had_lane = false;
    bool by_lane = false;
  };
  struct One {
    std::unique_ptr<Definition> definition;  ///< stays where it is
    std::uint32_t name = 0;                  ///< as Names numbers it
    std::string key;                         ///< the same for the same arguments of Session::define
    OptimizerSettings optimizer{};
    ByPlan by_plan{};
    std::uint32_t operations = 0;  ///< that are not over
    std::uint64_t begun = 0;       ///< when the last one began, by the count of all
    bool is_new = true;            ///< nothing of it was submitted yet
    LeastUsed::Place place{};
  };

  static constexpr std::uint32_t kPatience = 256;

  explicit Definitions(LeastUsed::Limits kept) : kept_(kept) {}

  /// The number of what has this key, which is used.
  std::optional<std::uint32_t> find(const std::string& key);
  /// Numbers are given out in order.
  std::uint32_t next() const { return all_.next(); }
  /// An operation of it begins.
  void begin(One& one) {
    ++one.operations;
    one.is_new = false;
    one.begun = ++begun_;
  }
  void add(One one);
  /// What has this number, which is used; null: it was forgotten, or never there.
  One* use(std::uint32_t number);
  bool has(std::uint32_t number) const { return all_.find(number) != nullptr; }
  One& operator[](std::uint32_t number) { return all_[number]; }

  struct Forgotten {
    std::uint32_t number = 0;
    std::uint32_t name = 0;
    bool was_last = false;  ///< of its name
    std::unique_ptr<Definition> definition;
  };
  /// The next one that is kept no longer, after an `add`.
  std::optional<Forgotten> forget();

  /// Calls `visit(number, one)` for each, in order.
  template <typename Visit>
  void for_each(const Visit& visit) {
    all_.for_each(visit);
  }

 private:
  Numbered<One> all_;
  std::uint64_t begun_ = 0;
  std::unordered_map<std::string, std::uint32_t> by_key_;
  std::unordered_map<std::uint32_t, std::uint32_t> of_name_;  // how many
  LeastUsed kept_;
};

}  // namespace casync
