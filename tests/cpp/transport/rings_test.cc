// Each marked peer is rung once, when the outermost call ends, and also when it ends by an exception.
#include "transport/host/rings.hpp"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <vector>

namespace casync::transport::host {
namespace {

struct Host {
  /// The third peer is on another host.
  std::vector<DoorbellCell*> bells() { return {&cells[0], &cells[1], nullptr}; }
  std::array<std::uint32_t, 2> rung() const { return {cells[0].word.load(), cells[1].word.load()}; }

  std::array<DoorbellCell, 2> cells;
};

using Rung = std::array<std::uint32_t, 2>;

TEST(Rings, ring_once_at_the_end_of_the_outermost_call) {
  Host host;
  Rings rings(host.bells());
  {
    const Rings::Call poll(rings);
    rings.mark(1);
    rings.mark(2);
    {
      const Rings::Call send(rings);
      rings.mark(1);
      rings.mark(0);
    }
    EXPECT_EQ(host.rung(), (Rung{0, 0}));
  }
  EXPECT_EQ(host.rung(), (Rung{1, 1}));
}

TEST(Rings, ring_again_in_the_next_call_whom_it_marks) {
  Host host;
  Rings rings(host.bells());
  {
    const Rings::Call call(rings);
    rings.mark(0);
  }
  {
    const Rings::Call call(rings);
  }
  EXPECT_EQ(host.rung(), (Rung{1, 0}));
  {
    const Rings::Call call(rings);
    rings.mark(0);
  }
  EXPECT_EQ(host.rung(), (Rung{2, 0}));
}

// A poll whose sink threw once left its transport silent until the next poll: what it said of the failure waited until
// the others happened to look.
TEST(Rings, ring_after_a_call_that_threw) {
  Host host;
  Rings rings(host.bells());
  EXPECT_THROW(
      {
        const Rings::Call poll(rings);
        rings.mark(0);
        throw std::runtime_error("a sink's");
      },
      std::runtime_error);
  EXPECT_EQ(host.rung(), (Rung{1, 0}));
  {
    const Rings::Call send(rings);
    rings.mark(1);
  }
  EXPECT_EQ(host.rung(), (Rung{1, 1}));
}

}  // namespace
}  // namespace casync::transport::host
