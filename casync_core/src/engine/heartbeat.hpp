#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// Decides when a silent peer is asked for a sign of life, and when it is given up. Pure. Only ranks that wait for
/// something ask, so an idle job sends nothing; a peer whose program computes for minutes answers, because its progress
/// thread does.
class Heartbeat {
 public:
  struct Options {
    Nanoseconds interval = 1'000'000'000;  ///< silence after which a peer is asked
    Nanoseconds timeout = 8'000'000'000;   ///< silence after the first question, after which it is given up
  };
  Heartbeat(std::uint32_t self, std::uint32_t members, Options options);

  void heard(std::uint32_t peer) { peers_[peer].asked_at = 0; }
  void gone(std::uint32_t peer) { peers_[peer].gone = true; }

  struct Outcome {
    std::vector<std::uint32_t> ask;
    std::vector<std::pair<std::uint32_t, std::string>> lost;
  };
  /// Called from time to time while this rank waits for others.
  Outcome check(Nanoseconds now);
  /// This rank waits for nobody: questions asked so far are void.
  void rest();

 private:
  struct Peer {
    Nanoseconds asked_at = 0;  // first unanswered question, 0 if none
    Nanoseconds last_ask = 0;
    bool gone = false;
  };
  std::uint32_t self_;
  Options options_;
  Nanoseconds last_check_ = 0;
  std::vector<Peer> peers_;
};

}  // namespace casync
