#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

namespace casync {

class Session;

/// The sessions of this process by the number of their process set: for glue that Python does not call for every
/// operation. Any thread.
class Published {
 public:
  /// Has the session found from now on.
  void put(std::int32_t process_set, Session& session);
  /// Has it found no more; returns when nobody holds it. Does nothing if there is none.
  void take(std::int32_t process_set);
  /// The session, which stays until it is released; null if there is none. A child process after a fork has none.
  Session* hold(std::int32_t process_set);
  void release(Session& session);

 private:
  struct Entry {
    Session* session = nullptr;
    int holders = 0;
    bool is_leaving = false;
    pid_t process = 0;
  };

  std::mutex mutex_;
  std::condition_variable released_;
  std::map<std::int32_t, Entry> entries_;
};

/// The one of this process.
Published& published();

}  // namespace casync
