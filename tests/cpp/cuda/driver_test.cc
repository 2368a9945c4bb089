// Where the driver comes from, and what is said when it is not there.
#include "cuda/driver.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "casync/error.hpp"
#include "standin/standin.hpp"

namespace casync::cuda {
namespace {

/// In a process of its own: a driver that was found stays.
std::string refusal(const char* library, const char* name = nullptr, const char* value = nullptr) {
  setenv("CASYNC_CUDA_DRIVER", library, 1);
  if (name != nullptr) setenv(name, value, 1);
  try {
    driver();
  } catch (const DeviceFailure& failure) {
    return failure.what();
  }
  return "there is one";
}

#define EXPECT_REFUSED(call, text) \
  EXPECT_EXIT(std::exit((std::fputs((call).c_str(), stderr), 0)), testing::ExitedWithCode(0), text)

TEST(Driver, ThatIsNotThereIsNamedWithWhatToDo) {
  EXPECT_REFUSED(refusal("libnone-such.so"), "driver is not there .*install NVIDIA's driver 525");
}
TEST(Driver, ThatIsAnotherLibraryIsNamed) {
  EXPECT_REFUSED(refusal("libm.so.6"), "libm.so.6 is too old, or not CUDA's: it has no cuInit");
}
TEST(Driver, ThatIsTooOldIsNamedWithItsVersion) {
  EXPECT_REFUSED(refusal(STANDIN_CUDA, "STANDIN_VERSION", "11040"), "it serves CUDA 11.4: install .* CUDA 12.0");
}
TEST(Driver, WithoutADeviceSaysSo) { EXPECT_REFUSED(refusal(STANDIN_CUDA, "STANDIN_DEVICES", "0"), "sees no device"); }
TEST(Driver, IsFoundByName) { EXPECT_REFUSED(refusal(STANDIN_CUDA), "there is one"); }

TEST(Driver, ItsErrorsNameTheCall) {
  setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1);
  const Driver& here = driver();
  DeviceNumber number = 0;
  try {
    CASYNC_CUDA(here, cuDeviceGet, &number, 99);
    FAIL();
  } catch (const DeviceFailure& failure) {
    EXPECT_STREQ(failure.what(), "CUDA's cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE (says the stand-in)");
    EXPECT_EQ(failure.facts.kind, ErrorKind::device);
  }
}

}  // namespace
}  // namespace casync::cuda
