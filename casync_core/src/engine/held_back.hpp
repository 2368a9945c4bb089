#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "casync/types.hpp"
#include "engine/control.hpp"

namespace casync {

/// What is to be said of operations, until it is said: in one message of all of which the same is true. Messages of
/// operations that become ready one after the other are at least `interval` apart; the first one goes at once. Pure.
template <typename Message>
class HeldBack {
 public:
  explicit HeldBack(Nanoseconds interval) : interval_(interval) {}

  /// `message` is true of `op`; it names no operations itself.
  void add(std::uint32_t op, Message message) {
    const auto alike = [&](const Message& other) { return same_terms(other, message); };
    auto at = std::find_if(messages_.rbegin(), messages_.rend(), alike);
    if (at == messages_.rend()) {
      messages_.push_back(std::move(message));
      at = messages_.rbegin();
    }
    at->ops.insert(op);
  }
  /// From when on what there is to say may be said.
  Nanoseconds next() const { return next_; }
  bool due(Nanoseconds now) const { return !messages_.empty() && now >= next_; }
  /// When it is due. Nothing: there is nothing to say.
  std::optional<Nanoseconds> wakes_at() const { return messages_.empty() ? std::nullopt : std::optional(next_); }
  /// All that is to be said, runs that come first first: those of one tensor are told in their order.
  const std::vector<Message>& take(Nanoseconds now) {
    taken_.clear();
    taken_.swap(messages_);
    std::ranges::stable_sort(taken_, {}, &Message::sequence);
    if (!taken_.empty()) next_ = now + interval_;
    return taken_;
  }

 private:
  Nanoseconds interval_;
  Nanoseconds next_ = 0;
  std::vector<Message> messages_;
  std::vector<Message> taken_;  // valid until the next take
};

}  // namespace casync
