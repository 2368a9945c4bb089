#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>

#include "cases.hpp"
#include "casync/codec.hpp"
#include "casync/error.hpp"

/// How fast codecs encode, decode and merge on one core, as ratios to memcpy of the same gradient and to a bare loop
/// that does the same work (bare.hpp). The three are run in turn and each ratio is the median over the turns, so that a
/// busy machine slows all alike. Buffers have 8 times the size of the last-level cache, and at least 256 MiB.
///   codec_speed [--mib N] [--cols 4096] [--turns 5] [--isa baseline|avx2|avx512] [--json FILE] [codec ...]
namespace casync::bench {
namespace {

struct Options {
  std::int64_t mib = 0;
  std::int64_t cols = 4096;
  int turns = 5;
  std::string json;
  std::vector<std::string> codecs;
};

struct Row {
  std::string codec;
  std::string operation;
  double seconds = 0;
  double to_memcpy = 0;
  double to_bare = 0;
  Goals goals;
};

constexpr const char* kIsaName[]{"baseline", "avx2", "avx512"};

Isa isa_of(const std::string& name) {
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (name == kIsaName[static_cast<int>(isa)]) return isa;
  throw InvalidArgument("--isa " + name + ": use baseline, avx2 or avx512");
}

/// Bytes of the last-level cache that this processor core can fill; 0 if the system does not say. (sysconf adds up the
/// caches of all sockets on some processors.)
std::int64_t last_level_cache() {
  std::int64_t kib = 0;
  for (int index = 0; index < 5; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    file >> kib;  // "32768K"; the last level comes last
  }
  return kib << 10;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw InvalidArgument(word + " needs a value");
      return argv[++i];
    };
    if (word == "--mib") {
      options.mib = std::stoll(value());
    } else if (word == "--cols") {
      options.cols = std::stoll(value());
    } else if (word == "--turns") {
      options.turns = std::stoi(value());
    } else if (word == "--json") {
      options.json = value();
    } else if (word == "--isa") {
      force_isa(isa_of(value()));
    } else {
      options.codecs.push_back(word);
    }
  }
  if (options.codecs.empty())
    options.codecs = {"onebit",
                      "terngrad(bits=2)",
                      "terngrad(bits=4)",
                      "terngrad(bits=8)",
                      "ternary",
                      "sparseloco",
                      "tbq",
                      "graddrop",
                      "dgc(ratio=0.001)",
                      "adacomp",
                      "threelc",
                      "powersgd(rank=4)",
                      "efsignsgd",
                      "topk",
                      "randomk",
                      "topkc",
                      "thc",
                      "int8",
                      "int4",
                      "rotated",
                      "lossless",
                      "fp8",
                      "qsgd",
                      "minmax_uint8",
                      "fp16",
                      "bf16",
                      "none"};
  if (options.mib == 0) options.mib = std::max<std::int64_t>(256, (8 * last_level_cache() + (1 << 20) - 1) >> 20);
  return options;
}

/// Processor time of this thread: other processes on the machine take turns away, but do not count.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Body>
double seconds_of(const Body& body) {
  const double begin = processor_seconds();
  body();
  return processor_seconds() - begin;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Row measure(const std::string& codec, const Case& one, Buffers& buffers, int turns) {
  std::vector<double> seconds;
  std::vector<double> to_memcpy;
  std::vector<double> to_bare;
  one.run();
  one.bare();
  const std::span<const float> from = buffers.gradient();
  for (int turn = 0; turn < turns; ++turn) {
    const double copy = seconds_of([&] { std::memcpy(buffers.out.bytes().data(), from.data(), from.size_bytes()); });
    seconds.push_back(seconds_of(one.run));
    const double bare = seconds_of(one.bare);
    to_memcpy.push_back(copy / seconds.back());
    to_bare.push_back(bare / seconds.back());
  }
  return {codec, one.operation, median(seconds), median(to_memcpy), median(to_bare), one.goals};
}

void write_json(const std::string& path, const Options& options, const std::vector<Row>& rows) {
  std::ofstream file(path);
  file << "{\"isa\": \"" << kIsaName[static_cast<int>(current_isa())] << "\", \"buffer_bytes\": " << (options.mib << 20)
       << ", \"last_level_cache_bytes\": " << last_level_cache() << ", \"cols\": " << options.cols
       << ", \"turns\": " << options.turns << ", \"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i)
    file << (i == 0 ? "\n" : ",\n") << "  {\"codec\": \"" << rows[i].codec << "\", \"operation\": \""
         << rows[i].operation << "\", \"seconds\": " << rows[i].seconds << ", \"to_memcpy\": " << rows[i].to_memcpy
         << ", \"goal_to_memcpy\": " << rows[i].goals.to_memcpy << ", \"to_bare\": " << rows[i].to_bare
         << ", \"goal_to_bare\": " << rows[i].goals.to_bare << "}";
  file << "\n]}\n";
}

/// "1.30" beside a ratio, with a mark if the ratio falls short of it.
std::string goal_text(double ratio, double goal) {
  if (goal == 0) return "";
  char text[16];
  std::snprintf(text, sizeof text, "%.2f%s", goal, ratio < goal ? " !" : "");
  return text;
}

int main_of(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const double cache = static_cast<double>(last_level_cache()) / (1 << 20);
  std::printf("%s, buffers of %lld MiB beside a last-level cache of %.0f MiB, medians of %d turns; ! falls short\n",
              kIsaName[static_cast<int>(current_isa())], static_cast<long long>(options.mib), cache, options.turns);
  std::printf("%-18s %-16s %9s %10s %-7s %8s %-7s\n", "codec", "operation", "GB/s", "to memcpy", "goal", "to bare",
              "goal");
  const std::int64_t rows = (options.mib << 18) / options.cols;
  Buffers buffers({rows, options.cols});
  std::vector<Row> table;
  for (const std::string& codec : options.codecs) {
    for (const Case& one : make_cases(codec, buffers)) {
      table.push_back(measure(codec, one, buffers, options.turns));
      const Row& row = table.back();
      const double gigabytes = static_cast<double>(buffers.out.bytes().size()) * 1e-9;
      std::printf("%-18s %-16s %9.2f %10.2f %-7s %8.2f %-7s\n", row.codec.c_str(), row.operation.c_str(),
                  gigabytes / row.seconds, row.to_memcpy, goal_text(row.to_memcpy, row.goals.to_memcpy).c_str(),
                  row.to_bare, goal_text(row.to_bare, row.goals.to_bare).c_str());
    }
  }
  if (!options.json.empty()) write_json(options.json, options, table);
  return 0;
}

}  // namespace
}  // namespace casync::bench

int main(int argc, char** argv) {
  try {
    return casync::bench::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "codec_speed: " << error.what() << '\n';
    return 2;
  }
}
