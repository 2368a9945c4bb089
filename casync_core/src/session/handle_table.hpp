#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "casync/session.hpp"
#include "executor/operation.hpp"
#include "session/staging.hpp"

namespace casync {

/// The operations of a session whose outcome the program has not collected, by their handles.
///
/// A handle is the session's number in 16 bits, the generation of an entry in 24, and which entry that is in 24. An
/// entry is used again for later operations, each time in a new generation. So a handle that was collected finds
/// nothing, nor does one of another session; and a session begins with the generations that those of this process have
/// come to which are over, so that handles of these find nothing either.
///   HandleTable::Entry& entry = table.add();
///   const Session::Handle handle = table.handle_of(entry);
///   if (HandleTable::Entry* const found = table.find(handle)) table.release(*found);
/// The session's mutex guards it.
class HandleTable {
 public:
  struct Entry {
    std::optional<Operation> operation{};  ///< in place: the executor has its address, and nothing is allocated for it
    std::unique_ptr<Staged> staged{};      ///< of an operation on a device
    std::uint32_t registration = 0;
    std::uint32_t generation = 0;
  };

  /// `session`: SessionOptions::number.
  explicit HandleTable(std::uint16_t session) : session_(session) {}

  /// A new operation, whose `index` is set. Its entry keeps its address.
  Entry& add();
  /// Of an entry that has an operation.
  Session::Handle handle_of(const Entry& entry) const;
  /// Null: it is the handle of no operation that is outstanding here.
  Entry* find(Session::Handle handle);
  Entry& operator[](std::uint32_t index) { return entries_[index]; }
  /// Forgets the entry's operation: from now on its handle finds nothing.
  void release(Entry& entry);

  /// The session is over. Calls `visit` with each entry.
  template <typename Visit>
  void close(const Visit& visit) {
    for (Entry& entry : entries_) {
      visit(entry);
      begin_later_ones_after(entry.generation);
    }
  }

 private:
  static constexpr unsigned kIndexBits = kHandleBits / 2;
  static constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;
  /// The generation with which the entries of new sessions begin.
  static inline std::atomic<std::uint32_t> first_generation{0};
  static void begin_later_ones_after(std::uint32_t generation);

  std::uint16_t session_;
  std::deque<Entry> entries_;  // stable addresses
  std::vector<std::uint32_t> free_;
};

}  // namespace casync
