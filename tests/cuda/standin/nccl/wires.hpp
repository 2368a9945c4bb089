#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// Where ranks of the stand-in for NCCL meet: a segment of shared memory of a host.
namespace standin {

inline constexpr int kMostRanks = 16;
inline constexpr std::size_t kChunk = 16 * 1024;

/// From one rank to one other: messages in order, chunk after chunk. A send moves nothing before its receive has begun.
struct Wire {
  std::atomic<int> from_there;         // the sender has connected
  std::atomic<int> to_here;            // the receiver has
  std::atomic<std::uint64_t> begun;    // receives
  std::atomic<std::uint64_t> bytes;    // that the last of them wants
  std::atomic<int> is_mismatched;      // a send had another count than its receive
  std::atomic<std::uint64_t> filled;   // chunks
  std::atomic<std::uint64_t> emptied;  // of them
  std::byte chunk[kChunk];
};

struct Wires {
  std::atomic<int> arrived;  // ranks
  std::atomic<int> finalized;
  Wire between[kMostRanks][kMostRanks];  // [sender][receiver]

  /// A segment of no rank yet; it is gone with the process unless all arrive.
  static std::string make();
  /// Null: there is none of that name.
  static std::shared_ptr<Wires> open(const std::string& name);
  /// All have arrived: nobody else opens it.
  static void forget(const std::string& name);
};

}  // namespace standin
