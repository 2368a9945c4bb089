// The fuzz target `peer` is worth its time only if its frames are taken and lead somewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "casync/error.hpp"
#include "executor/frames/frame.hpp"
#include "peer_rank.hpp"

namespace casync::fuzz {
namespace {

TEST(PeerTarget, AFrameThatItMakesIsTakenAndReachesTheEngine) {
  // The choices of frame_from: one entry, a control message of tensor 0, operation 0, run 0: it is ready.
  const std::vector<std::uint8_t> choices{0, 1, 0, 0, 0, 1};
  Input input(choices.data(), choices.size());
  Seen seen;
  Rank rank(1, "local", seen);
  rank.wire().frame(0, frame_from(input));
  rank.turn();
  EXPECT_EQ(seen.heard[ControlKind::ready], 1);
}

TEST(PeerTarget, MostFramesThatItMakesAreFrames) {
  std::mt19937 random(1);
  int taken = 0;
  constexpr int kFrames = 1000;
  for (int i = 0; i < kFrames; ++i) {
    std::vector<std::uint8_t> choices(200);
    std::ranges::generate(choices, [&] { return static_cast<std::uint8_t>(random()); });
    Input input(choices.data(), choices.size());
    const Bytes head = frame_from(input).bytes;
    try {
      for (FrameReader frame(kSession, head); frame.next();) continue;
      ++taken;
    } catch (const CorruptPayload&) {
    }
  }
  EXPECT_GT(taken, kFrames * 9 / 10);
}

}  // namespace
}  // namespace casync::fuzz
