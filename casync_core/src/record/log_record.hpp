#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/wire.hpp"
#include "engine/engine.hpp"

/// The records of an event log: written by EventLog, read by replay.
namespace casync::log {

inline constexpr std::uint64_t kMagic =
    0x474f4c434e595341ULL;  // "ASYNCLOG", in the byte order of the machine that wrote it
inline constexpr std::uint32_t kVersion = 14;

enum class Record : std::uint8_t { event = 1, decide = 2, action = 3 };

Nanoseconds get_time(ByteReader& reader);

void put(Bytes& out, const EngineOptions& options);
EngineOptions get_options(ByteReader& reader);

void put(Bytes& out, const Event& event, Nanoseconds now);
/// An event as it was read, and what it refers to.
struct Stored {
  Request definition;
  std::vector<std::int64_t> splits;
  Abort why;
  std::vector<event::Planned::Plan> plans;
  std::vector<Rank> peers;
};
/// `stored` and what is read must outlive the event.
Event get_event(ByteReader& reader, Nanoseconds& now, Stored& stored);

}  // namespace casync::log
