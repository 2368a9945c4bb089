#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bare.hpp"
#include "casync/codec.hpp"
#include "casync/staggered.hpp"
#include "memory.hpp"

namespace casync::bench {

/// What an operation reads and writes; the codec and the bare loop are given the same.
struct Work {
  int peers = 0;            ///< payloads that are read
  bool own = false;         ///< the gradient is read
  bool accumulate = false;  ///< out is also a raw source
  bool encode = false;
  bool feedback = false;  ///< the runtime's residual; state of the codec's own is always there
  bool deliver = false;   ///< out is written
};

/// What the bare loop of a codec must do beside moving each stream once.
struct BareLoop {
  int looks = 0;          ///< passes that only read, over each unit, before the one that encodes it
  std::int64_t unit = 0;  ///< elements; 0: all
  bool terngrad = false;
};

/// A codec with what one rank keeps of a gradient for it, and the bare loops with memory of their own, since they
/// leave nonsense in it.
class Bench {
 public:
  static constexpr int kPeers = 4;

  /// After some steps, so that residual and state are what training meets.
  Bench(const std::string& spec, Buffers& buffers, BareLoop loop);

  const CodecInfo& info() const { return codec_->info(); }

  /// Encoding takes the gradient of the next step, through all rounds.
  void run(const Work& work);
  void run_bare(const Work& work);

 private:
  struct Payload {
    explicit Payload(std::size_t bound) : memory(bound) {}
    Memory memory;
    std::size_t bytes = 0;  ///< that were written
  };

  Segment segment() const;
  void settle();
  void run_round(const Work& work, std::size_t round);
  Streams streams(const Work& work);

  std::shared_ptr<const Codec> codec_;
  Buffers& buffers_;
  BareLoop loop_;
  std::uint32_t step_ = 0;
  std::vector<FloatArray> state_;  ///< the codec's arrays, then the residual if it needs one
  std::vector<float*> arrays_;
  std::vector<FloatArray> bare_state_;  ///< of those by element
  std::vector<Payload> payloads_;       ///< of this rank, one for each round
  std::vector<Payload> peers_;          ///< of the last round
  float seen_ = 0;                      ///< by bare loops
};

}  // namespace casync::bench
