// A rank whose peers send what they like: frames with the right checksum and anything in them, bodies, byes, silence,
// in any order, while this rank submits operations of every kind. Nothing may leave the driver as an exception, for it
// would end the thread that makes progress; and after a failure every operation has ended.
#include "peer_rank.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  casync::fuzz::Seen seen;
  casync::fuzz::play({data, size}, seen);
  return 0;
}
