#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>

#include "cases.hpp"
#include "casync/error.hpp"

/// How fast codecs encode, decode and merge on one core, as ratios to memcpy of the same gradient and to a bare loop
/// that moves the same bytes. The three are run in turn and each ratio is the median over the turns, so that a busy
/// machine slows all alike.
///   codec_speed [--mib 256] [--cols 4096] [--turns 5] [--isa baseline|avx2|avx512] [--json FILE] [codec ...]
namespace casync::bench {
namespace {

struct Options {
  std::int64_t mib = 256;
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
  double goal = 0;
};

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
      const std::string isa = value();
      force_isa(isa == "baseline" ? Isa::baseline : isa == "avx2" ? Isa::avx2 : Isa::avx512);
    } else {
      options.codecs.push_back(word);
    }
  }
  if (options.codecs.empty())
    options.codecs = {"onebit", "terngrad(bits=2)", "terngrad(bits=4)", "terngrad(bits=8)", "fp16", "bf16", "none"};
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

Row measure(const Case& one, Buffers& buffers, int turns) {
  std::vector<double> seconds;
  std::vector<double> to_memcpy;
  std::vector<double> to_bare;
  one.run();
  for (int turn = 0; turn < turns; ++turn) {
    const double copy = seconds_of(
        [&] { std::memcpy(buffers.out.data(), buffers.gradient.data(), buffers.gradient.size() * sizeof(float)); });
    seconds.push_back(seconds_of(one.run));
    const double bare = seconds_of([&] { bare_loop(one.traffic, buffers); });
    to_memcpy.push_back(copy / seconds.back());
    to_bare.push_back(bare / seconds.back());
  }
  return {one.codec, one.operation, median(seconds), median(to_memcpy), median(to_bare), one.goal};
}

void write_json(const std::string& path, const Options& options, const std::vector<Row>& rows) {
  std::ofstream file(path);
  file << "{\"mib\": " << options.mib << ", \"cols\": " << options.cols << ", \"turns\": " << options.turns
       << ", \"isa\": " << static_cast<int>(current_isa()) << ", \"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i)
    file << (i == 0 ? "\n" : ",\n") << "  {\"codec\": \"" << rows[i].codec << "\", \"operation\": \""
         << rows[i].operation << "\", \"seconds\": " << rows[i].seconds << ", \"to_memcpy\": " << rows[i].to_memcpy
         << ", \"to_bare\": " << rows[i].to_bare << ", \"goal\": " << rows[i].goal << "}";
  file << "\n]}\n";
}

int main_of(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const std::int64_t rows = (options.mib << 18) / options.cols;
  Buffers buffers({rows, options.cols});
  std::printf("%-18s %-16s %9s %10s %8s %6s\n", "codec", "operation", "GB/s", "to memcpy", "to bare", "goal");
  std::vector<Row> table;
  for (const std::string& codec : options.codecs) {
    for (const Case& one : make_cases(codec, buffers)) {
      table.push_back(measure(one, buffers, options.turns));
      const Row& row = table.back();
      const double gigabytes = static_cast<double>(buffers.gradient.size()) * 4e-9;
      std::printf("%-18s %-16s %9.2f %10.2f %8.2f %6.2f\n", row.codec.c_str(), row.operation.c_str(),
                  gigabytes / row.seconds, row.to_memcpy, row.to_bare, row.goal);
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
