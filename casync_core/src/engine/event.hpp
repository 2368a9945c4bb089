#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "casync/types.hpp"

/// The boundary of the Engine: what happened (Event) and what to do (Action). Both are plain, with integer ids and no
/// pointers into the user's memory, so that a log of events replays to the identical actions on another machine.
namespace casync {

/// How an operation ended, or what ended it. Numbers are on the wire: append only.
enum class Status : std::uint8_t {
  ok = 0,
  mismatch = 1,
  timeout = 2,
  aborted = 3,
  peer_failure = 4,
  invalid = 5,
  corrupt = 6
};

enum class EventKind : std::uint8_t {
  define,     ///< id = registration, bytes = name, signature and site (control.hpp)
  submit,     ///< id = registration, value = handle, size = rows of this rank's own (allgather), bytes = an int64 per
              ///< member, its rows for it (alltoall), sequence = steps of the gradient that are counted, tag = settled
              ///< values that are kept of it (control.hpp)
  control,    ///< peer, bytes = one control message
  arrived,    ///< peer, op, sequence, tag, size, value = cookie: a message is here or announced
  ran,        ///< id = instance, task; flag = the result was not finite; status, bytes = an Abort
              ///< (control.hpp) if it failed
  sent,       ///< id = instance, task
  received,   ///< id = instance, task
  peer_down,  ///< peer, bytes = why
  abort,      ///< status, bytes = an Abort: this rank's program failed, or bytes came that no correct peer sends
  shutdown,   ///< this rank leaves
  measured,   ///< task = CostKind, size = bytes, value = nanoseconds, bytes = codec: what something cost on this rank
};

struct Event {
  EventKind kind = EventKind::define;
  Status status = Status::ok;
  bool flag = false;
  std::uint16_t peer = 0;
  std::uint32_t id = 0;
  std::uint32_t task = 0;
  std::uint32_t op = 0;
  std::uint32_t sequence = 0;
  std::uint32_t tag = 0;
  std::uint64_t size = 0;
  std::uint64_t value = 0;
  std::span<const std::byte> bytes{};
};

enum class ActionKind : std::uint8_t {
  begin,     ///< instance id runs for handle `value`; its template is Engine::shape(id)
  reserve,   ///< memory of partition `task` of instance id
  run,       ///< compute task of instance id
  send,      ///< task of instance id to peer
  accept,    ///< the message with cookie `value` is the receive `task` of instance id
  drop,      ///< the message with cookie `value` belongs to nothing any more
  release,   ///< memory of partition `task` of instance id
  finish,    ///< instance id, handle `value`: done, with `status` and bytes = an Abort if it failed
  control,   ///< bytes = one control message to peer
  report,    ///< bytes = a Stall (control.hpp) for the user's log
  measure,   ///< bytes = a codec: time it on scratch data and answer with `measured` events
  stand_in,  ///< bytes = a definition (control.hpp): submit it in the place of the program, which has joined
};

struct Action {
  ActionKind kind = ActionKind::begin;
  Status status = Status::ok;
  std::uint16_t peer = 0;
  std::uint32_t id = 0;
  std::uint32_t task = 0;
  bool nonfinite = false;
  std::uint64_t value = 0;
  std::span<const std::byte> bytes{};  ///< valid during emit only
};

class ActionSink {
 public:
  virtual ~ActionSink() = default;
  virtual void emit(const Action& action) = 0;
};

/// Something that sees every event, decide and action of an Engine, in their order: the event log.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event, Nanoseconds now) = 0;
  virtual void on_decide(Nanoseconds now) = 0;
  virtual void on_action(const Action& action) = 0;
};

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace casync
