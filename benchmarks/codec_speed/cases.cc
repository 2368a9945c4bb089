#include "cases.hpp"

#include <memory>

#include "bench.hpp"

namespace casync::bench {
namespace {

/// Goals of each case, relative to memcpy of the gradient. Against the bare loop it is 0.8 wherever there is one.
struct Known {
  const char* codec;
  struct {
    double encode = 0, feedback = 0, decode = 0, decode_merge = 0;
  } goals;
  BareLoop loop;
};
constexpr Known kKnown[]{
    {"onebit", {.encode = 1.3, .feedback = 0.65, .decode_merge = 1.3}, {}},
    {"terngrad", {.encode = 0.55, .decode_merge = 1.2}, {.terngrad = true}},
    {"ternary", {.encode = 0.55, .decode_merge = 1.2}, {}},
    {"sparseloco", {.feedback = 0.5}, {}},
    {"tbq", {.feedback = 0.55, .decode_merge = 1.2}, {}},
    {"graddrop", {.feedback = 0.6}, {}},
    {"dgc", {.encode = 0.4}, {}},
    {"adacomp", {.encode = 0.4}, {}},
    {"threelc", {.feedback = 0.3, .decode_merge = 1.2}, {.looks = 1, .unit = 1 << 20}},
    {"powersgd", {}, {.looks = 2}},
    {"efsignsgd", {.feedback = 0.65, .decode_merge = 1.2}, {}},
    {"topk", {.feedback = 0.5}, {}},
    {"randomk", {.encode = 1.5}, {}},
    {"topkc", {}, {.looks = 2}},
    {"thc", {}, {.looks = 2}},
    {"int8", {.encode = 0.6, .decode_merge = 1.2}, {}},
    {"int4", {.feedback = 0.6, .decode_merge = 1.2}, {}},
    {"rotated", {}, {}},
    {"lossless", {}, {}},
    {"fp8", {.encode = 0.6, .decode_merge = 1.2}, {}},
    {"qsgd", {.encode = 0.6, .decode_merge = 1.2}, {}},
    {"minmax_uint8", {.encode = 0.6, .decode_merge = 1.2}, {}},
    {"fp16", {.encode = 1.2, .decode = 1.2}, {}},
    {"bf16", {.encode = 1.2, .decode = 1.2}, {}},
};
constexpr double kToBare = 0.8;

Known known(const std::string& spec) {
  for (const Known& one : kKnown)
    if (spec.starts_with(one.codec)) return one;
  return {};
}

}  // namespace

std::vector<Case> make_cases(const std::string& spec, Buffers& buffers) {
  const auto [name, goals, loop] = known(spec);
  const auto bench = std::make_shared<Bench>(spec, buffers, loop);
  std::vector<Case> cases;
  const auto add = [&](const char* operation, double goal, const std::vector<Work>& works) {
    cases.push_back({operation,
                     {goal, goal > 0 ? kToBare : 0},
                     [bench, works] {
                       for (const Work& work : works) bench->run(work);
                     },
                     [bench, works] {
                       for (const Work& work : works) bench->run_bare(work);
                     }});
  };
  const CodecInfo& info = bench->info();
  const bool feedback = info.feedback == Feedback::wrapper;
  const Work encode{.own = true, .encode = true};
  const Work with_feedback{.own = true, .encode = true, .feedback = true};
  const Work decode{.peers = 1, .deliver = true};
  add("encode", goals.encode, {encode});
  if (feedback) add("encode+feedback", goals.feedback, {with_feedback});
  add("decode", goals.decode, {decode});
  if (info.rounds.size() > 1) {
    add("all rounds", 0, {with_feedback, decode});
    return cases;
  }
  add("decode+merge", goals.decode_merge, {{.peers = 1, .accumulate = true}});
  if (gathers(info)) {
    add("merge 4", 0, {{.peers = 4, .deliver = true}});
    return cases;
  }
  add("merge 3+own", 0, {{.peers = 3, .own = true, .deliver = true}});
  add("owner 3+own", 0, {{.peers = 3, .own = true, .encode = true, .feedback = feedback, .deliver = true}});
  return cases;
}

}  // namespace casync::bench
