#include "session/published.hpp"

namespace casync {

void Published::put(std::int32_t process_set, Session& session) {
  const std::scoped_lock lock(mutex_);
  entries_[process_set] = {&session, 0, false, getpid()};
}

void Published::take(std::int32_t process_set) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(process_set);
  if (found == entries_.end()) return;
  found->second.is_leaving = true;
  // Who held it when the process was forked is not in the child.
  released_.wait(lock, [&] { return found->second.holders == 0 || found->second.process != getpid(); });
  entries_.erase(found);
}

Session* Published::hold(std::int32_t process_set) {
  const std::scoped_lock lock(mutex_);
  const auto found = entries_.find(process_set);
  if (found == entries_.end() || found->second.is_leaving || found->second.process != getpid()) return nullptr;
  ++found->second.holders;
  return found->second.session;
}

void Published::release(Session& session) {
  const std::scoped_lock lock(mutex_);
  for (auto& [number, entry] : entries_) {
    if (entry.session != &session) continue;
    if (--entry.holders == 0 && entry.is_leaving) released_.notify_all();
    return;
  }
}

Published& published() {
  static auto* const table = new Published;  // threads of a framework may ask for it until the process has ended
  return *table;
}

}  // namespace casync
