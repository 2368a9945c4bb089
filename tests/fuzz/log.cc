// A file given to `casync replay`: an event log that was changed. It is refused with a casync error, or its Engine does
// something else than the log says.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "casync/error.hpp"
#include "input.hpp"
#include "record/event_log.hpp"
#include "record/log_record.hpp"

namespace casync::fuzz {
namespace {

/// A file that goes with the process.
struct File {
  std::filesystem::path path = std::filesystem::temp_directory_path() / detail::concat("casync_fuzz_log_", getpid());
  ~File() { std::filesystem::remove(path); }
};

void test_one(Bytes log) {
  static const File file;
  // Always of this version: a new one would make nothing of all inputs that are kept.
  constexpr std::size_t kAt = sizeof(std::uint32_t);  // behind the length of the header
  if (log.size() >= kAt + sizeof log::kMagic + sizeof log::kVersion) {
    std::memcpy(log.data() + kAt, &log::kMagic, sizeof log::kMagic);
    std::memcpy(log.data() + kAt + sizeof log::kMagic, &log::kVersion, sizeof log::kVersion);
  }
  std::ofstream(file.path, std::ios::binary)
      .write(reinterpret_cast<const char*>(log.data()), static_cast<std::streamsize>(log.size()));
  try {
    static_cast<void>(replay(file.path));
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace casync::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  casync::fuzz::test_one({begin, begin + size});
  return 0;
}
