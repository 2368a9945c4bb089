#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "casync/planner.hpp"
#include "plan/planning.hpp"
#include "planner/cost/recent.hpp"

namespace casync {

/// How long the calls of codecs take on one rank. It keeps the last kRecent calls of each codec and size, where sizes
/// within a factor of two are one. Calls for gradients of the program count, which share the cores with all else that
/// it computes. As long as there is none, those on copies of gradients count, and then those on scratch data.
class CodecTimes {
 public:
  static constexpr std::size_t kRecent = 16;
  enum class Call : std::uint8_t { encode, decode };

  void add(std::string_view codec, Call call, const Sample& sample, Basis basis);
  /// Whether both encode and decode were timed.
  bool has(std::string_view codec) const;
  /// Lines through the calls, of all codecs of which both were timed.
  std::map<std::string, CodecCost, std::less<>> costs() const;

 private:
  struct Calls {
    std::map<int, Recent<Sample, kRecent>> by_size;  // by the logarithm of the size, rounded down
    Basis basis = Basis::scratch;
  };
  struct Codec {
    Calls encode, decode;
  };
  static Line line(const Calls& calls);
  std::map<std::string, Codec, std::less<>> codecs_;
};

}  // namespace casync
