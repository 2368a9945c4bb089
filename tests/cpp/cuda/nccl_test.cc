// Where NCCL comes from, and what is said when it is not there.
#include "cuda/nccl.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "casync/error.hpp"

namespace casync::cuda {
namespace {

/// In a process of its own: a library that was found stays.
std::string found(const std::string& wheel) {
  try {
    const Nccl& here = nccl(wheel);
    return here.path + " is NCCL " + here.version_text();
  } catch (const DeviceFailure& failure) {
    return failure.what();
  }
}
std::string named(const char* library, const char* version = "22809") {
  setenv("CASYNC_NCCL", library, 1);
  setenv("STANDIN_NCCL_VERSION", version, 1);
  return found("");
}

#define EXPECT_SAYS(call, text) \
  EXPECT_EXIT(std::exit((std::fputs((call).c_str(), stderr), 0)), testing::ExitedWithCode(0), text)

TEST(Nccl, ThatIsNotThereIsNamedWithWhatToDo) {
  EXPECT_SAYS(named("libnone-such.so"), "NCCL is not there .*libnone-such.so.*: install NCCL 2.18 or newer");
}
TEST(Nccl, ThatIsAnotherLibraryIsNamed) {
  EXPECT_SAYS(named("libm.so.6"), "libm.so.6 is not NCCL: it has no ncclGetVersion: install NCCL 2.18");
}
TEST(Nccl, ThatIsTooOldIsNamedWithItsVersion) {
  EXPECT_SAYS(named(STANDIN_NCCL, "21799"), "libstandin_nccl.so is NCCL 2.17.99, which is too old: install");
  EXPECT_SAYS(named(STANDIN_NCCL, "2804"), "is NCCL 2.8.4, which is too old");
}
TEST(Nccl, OfAnyLaterVersionIsFound) {
  EXPECT_SAYS(named(STANDIN_NCCL, "21800"), "libstandin_nccl.so is NCCL 2.18.0$");
  EXPECT_SAYS(named(STANDIN_NCCL, "30101"), "libstandin_nccl.so is NCCL 3.1.1$");
}
TEST(Nccl, OfAWheelIsFoundByItsPath) {
  const auto by_path = [] {
    unsetenv("CASYNC_NCCL");
    return found(STANDIN_NCCL);
  };
  EXPECT_SAYS(by_path(), "is NCCL 2.28.9");
}
TEST(Nccl, OfAWheelThatDoesNotLoadIsNamed) {
  const auto by_path = [] {
    unsetenv("CASYNC_NCCL");
    return found("/nowhere/libnccl.so.2");
  };
  EXPECT_SAYS(by_path(), "NCCL is not there .*/nowhere/libnccl.so.2.*install NCCL 2.18");
}
TEST(Nccl, ThatTheProcessHasLoadedIsTakenBeforeTheWheels) {
  const auto beside = [] {
    unsetenv("CASYNC_NCCL");
    if (dlopen(OLD_NCCL, RTLD_NOW | RTLD_LOCAL) == nullptr) return std::string(dlerror());
    return found(STANDIN_NCCL);
  };
  EXPECT_SAYS(beside(), "libnccl.so.2 is NCCL 2.17.3, which is too old");
}

}  // namespace
}  // namespace casync::cuda
