#include "codec/support.hpp"

#include <cmath>

#include "codec/reference.hpp"

namespace casync::test {

std::uint64_t Seeded::next() {  // splitmix64
  std::uint64_t z = state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Seeded::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double Seeded::normal() {
  // The sum of eight uniforms has variance 8/12 and is near enough to normal.
  double sum = -4.0;
  for (int word = 0; word < 2; ++word)
    for (std::uint64_t bits = next(), part = 0; part < 4; ++part, bits >>= 16)
      sum += static_cast<double>(bits & 0xffffU) / 65536.0;
  return sum * 1.224744871391589;
}

std::vector<float> gradient(std::int64_t n, std::uint64_t seed) {
  Seeded random(seed);
  std::vector<float> out(static_cast<std::size_t>(n));
  const double scale = std::exp2(static_cast<double>(random.next() % 20) - 15.0);
  for (float& value : out) {
    const std::uint64_t kind = random.next() % 64;
    value = kind == 0 ? 0.0F : kind == 1 ? -0.0F : static_cast<float>(scale * random.normal());
  }
  return out;
}

Bytes elements(const std::vector<float>& values, DType dtype) {
  Bytes out(values.size() * size_of(dtype));
  if (dtype == DType::float32 && !values.empty()) {
    std::memcpy(out.data(), values.data(), out.size());
    return out;
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    reference::write(out.data(), i, dtype, static_cast<double>(values[i]));
  return out;
}

std::vector<float> values(const Bytes& elements, DType dtype) {
  std::vector<float> out(elements.size() / size_of(dtype));
  if (dtype == DType::float32 && !out.empty()) {
    std::memcpy(out.data(), elements.data(), elements.size());
    return out;
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(reference::read(elements.data(), i, dtype));
  return out;
}

State::State(const Codec& codec, Shape shape) : arrays(codec.state(shape)) {
  Segment segment;
  segment.shape = shape;
  for (const StateArray& array : arrays) {
    values.emplace_back(static_cast<std::size_t>(array.elements), 0.0F);
    codec.start(shape, 0x0123456789abcdefULL, values.size() - 1, values.back());
  }
  point();
  segment.state = pointers_;
  const std::vector<float> agreed(static_cast<std::size_t>(codec.agreed()), 0.5F);
  if (!agreed.empty()) codec.agree(segment, agreed);
}

void State::point() {
  for (auto& array : values) pointers_.push_back(array.data());
}

Call::Call(std::shared_ptr<const Codec> codec, Shape shape, Range range, DType dtype)
    : codec_(std::move(codec)), state_(*codec_, shape) {
  segment.state = state_.pointers();
  segment.shape = shape;
  segment.range = range;
  segment.dtype = dtype;
  segment.name_hash = 0x0123456789abcdefULL;
}

Call& Call::raw(const Bytes& whole) {
  const std::size_t size = size_of(segment.dtype);
  const auto begin = static_cast<std::size_t>(segment.range.begin) * size;
  sources_.push_back({whole.data() + begin, static_cast<std::size_t>(segment.range.size()) * size, true});
  return *this;
}

Call& Call::encoded(const Bytes& bytes) {
  sources_.push_back({bytes.data(), bytes.size(), false});
  return *this;
}

Call& Call::residual(std::vector<float>* whole) {
  segment.residual = whole == nullptr ? nullptr : whole->data() + segment.range.begin;
  return *this;
}

std::size_t Call::bound() const { return codec_->bound(segment.shape, segment.dtype, segment.range, segment.round); }

Call& Call::state(State* whole) {
  if (whole != nullptr) segment.state = whole->pointers();
  return *this;
}

Call& Call::encode() {
  payload.assign(bound(), std::byte{0xa5});
  segment.payload = payload;
  return *this;
}

Call& Call::deliver() {
  out.assign(static_cast<std::size_t>(segment.range.size()) * size_of(segment.dtype), std::byte{0x5a});
  segment.raw_out = out.data();
  return *this;
}

Call& Call::run() {
  segment.sources = sources_;
  codec_->run({&segment, 1});
  payload.resize(segment.payload_bytes);
  return *this;
}

Bytes encode_whole(const std::string& spec, Shape shape, const std::vector<float>& gradient,
                   std::vector<float>* residual) {
  const Bytes raw = elements(gradient, DType::float32);
  return Call(make_codec(spec), shape, {0, shape.numel()}).raw(raw).residual(residual).encode().run().payload;
}

std::vector<float> decode_whole(const std::string& spec, Shape shape, const Bytes& payload) {
  return Call(make_codec(spec), shape, {0, shape.numel()}).encoded(payload).deliver().run().result();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<Shape> awkward_shapes() {
  std::vector<Shape> shapes;
  for (const std::int64_t n : {0, 1, 7, 255, 256, 257, 4095, 4096, 4097, 16383, 16384, 16385}) {
    shapes.push_back({n, 1});
    shapes.push_back({1, n});
  }
  for (const Shape shape : {Shape{3, 4097}, Shape{7, 5000}, Shape{300, 1}, Shape{100, 3}, Shape{37, 255},
                            Shape{19, 300}, Shape{5, 1024}, Shape{2, 12289}, Shape{70, 768}, Shape{1000, 17}})
    shapes.push_back(shape);
  return shapes;
}

}  // namespace casync::test
