// For tests that call generated kernels from Python (tests/python/compll/units). A call returns kWroteBehind if it
// wrote past the scratch memory that it had asked for.
#include "harness.hpp"

namespace {
constexpr std::int64_t kWroteBehind = -1000;
using namespace casync::codec;
}  // namespace

extern "C" {

int choice_of(const Given* given, int choices) {
  Given tried = *given;
  for (tried.choice = 0; tried.choice < choices; ++tried.choice)
    if (tried.kernels().fits(tried.facts(0))) return tried.choice;
  return -1;
}
int applies(const Given* given) { return given->kernels().applies(given->facts(0)) ? 1 : 0; }
std::int64_t unit(const Given* given) { return given->kernels().unit(given->facts(0)); }
std::int64_t bound(const Given* given, int round) { return given->kernels().bound(given->facts(round), round); }
std::int64_t elements(const Given* given, int state) { return given->kernels().elements(given->facts(0), state); }
void start(const Given* given, int state, float* values) {
  const std::int64_t count = elements(given, state);
  for (std::int64_t i = 0; i < count; ++i) values[i] = given->kernels().start(given->facts(0), state, i);
}

std::int64_t encode(const Given* given, int round, const float* accumulated, float* residual, float mid,
                    const float* received, std::byte* payload, std::int64_t capacity, int* nonfinite) {
  const Facts facts = given->facts(round);
  Scratch scratch(given->kernels().scratch_bytes(facts));
  const UnitJob job{.facts = facts,
                    .accumulated = accumulated,
                    .residual = residual,
                    .mid = mid,
                    .payload = payload,
                    .payload_end = payload + capacity,
                    .received = reinterpret_cast<const std::byte*>(received),
                    .scratch = scratch.data()};
  const EncodedUnit encoded = given->kernels().encode_unit(job, round);
  *nonfinite = encoded.nonfinite ? 1 : 0;
  return scratch.kept() ? encoded.bytes : kWroteBehind;
}

std::int64_t decode(const Given* given, int round, const std::byte* payload, std::int64_t bytes, const float* received,
                    float* out, int into, const float* accumulated, float divisor, int keep) {
  const Facts facts = given->facts(round);
  Scratch scratch(given->kernels().scratch_bytes(facts));
  const DecodeJob job{.facts = facts,
                      .payload = payload,
                      .payload_end = payload + bytes,
                      .received = reinterpret_cast<const std::byte*>(received),
                      .scratch = scratch.data(),
                      .out = out,
                      .accumulated = accumulated,
                      .divisor = divisor,
                      .keep = keep != 0};
  const std::int64_t used = given->kernels().decode_unit(job, static_cast<Into>(into));
  return scratch.kept() ? used : kWroteBehind;
}

float propose(const Given* given, const float* gradient) {
  const Facts facts = given->facts(0);
  Scratch scratch(given->kernels().propose_scratch(facts));
  return given->kernels().propose(UnitJob{.facts = facts, .accumulated = gradient, .scratch = scratch.data()});
}
void agree(const Given* given, float received) { given->kernels().agree(given->facts(0), received); }

// A quantiser has entries of its own.
int encode_codes(const Given* given, const float* accumulated, float* residual, float mid, std::byte* payload) {
  const UnitJob job{
      .facts = given->facts(0), .accumulated = accumulated, .residual = residual, .mid = mid, .payload = payload};
  return given->kernels().encode(job) ? 1 : 0;
}
void decode_codes(const Given* given, const std::byte* payload, float* out) {
  const Facts facts = given->facts(0);
  const MergeSource source{.payload = payload, .facts = &facts};
  given->kernels().merge(&source, 1, out, given->n, false);
}
}
