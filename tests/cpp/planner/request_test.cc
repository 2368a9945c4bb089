#include "planner/search/request.hpp"

#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "casync/error.hpp"

namespace casync {
namespace {

using Specs = std::vector<std::string>;

TEST(ParseAuto, OtherTextIsNoAuto) {
  for (const char* text : {"", "none", "onebit", "automatic", "onebit(auto)"}) EXPECT_FALSE(parse_auto(text)) << text;
}

TEST(ParseAuto, BareAutoNamesNothing) {
  EXPECT_EQ(parse_auto("auto"), Specs{});
  EXPECT_EQ(parse_auto(" auto "), Specs{});
}

TEST(ParseAuto, CommasWithinBracketsBelongToTheCodec) {
  EXPECT_EQ(parse_auto("auto(onebit)"), Specs{"onebit"});
  EXPECT_EQ(parse_auto("auto( onebit , terngrad(bits=4) )"), (Specs{"onebit", "terngrad(bits=4)"}));
  EXPECT_EQ(parse_auto("auto(dgc(ratio=0.1, clip=1), none)"), (Specs{"dgc(ratio=0.1, clip=1)", "none"}));
}

TEST(ParseAuto, WhatCannotBeReadIsRefused) {
  for (const char* text :
       {"auto(", "auto()", "auto(,)", "auto(onebit", "auto(onebit,)", "auto(a))", "auto(a)(b)", "auto((a)"}) {
    EXPECT_THROW(parse_auto(text), InvalidArgument) << text;
  }
}

/// The choice in "always(...)"; empty if the text is not an always.
std::string in_always(const char* text) {
  const Compression found = parse_compression(text);
  EXPECT_EQ(found.interval, 1U) << text;
  return found.always ? found.choice : "";
}

TEST(ParseAlways, GivesWhatIsMeantWhateverTheSize) {
  EXPECT_EQ(in_always("always(onebit)"), "onebit");
  EXPECT_EQ(in_always(" always ( terngrad(bits=4) ) "), "terngrad(bits=4)");
  EXPECT_EQ(in_always("always(auto(onebit, fp16))"), "auto(onebit, fp16)");
  EXPECT_EQ(in_always("always(always(onebit))"), "onebit") << "a rule in full for a codec that says so itself";
  for (const char* text : {"", "always", "onebit", "alwaysbit", "auto(always)"}) EXPECT_EQ(in_always(text), "") << text;
  for (const char* text : {"always(", "always()", "always( )", "always(onebit", "always(always())"}) {
    EXPECT_THROW(parse_compression(text), InvalidArgument) << text;
  }
}

/// Returns why parse_compression refuses the text; empty if it does not.
std::string refusal(const char* text) {
  try {
    parse_compression(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(ParseCovap, GivesTheCoefficient) {
  const Compression found = parse_compression("always(covap(fp16, init=0.25, interval=2, ascend_range=.5))");
  EXPECT_EQ(found.coefficient, (Coefficient{0.25, 50, 0.5}));
  EXPECT_FLOAT_EQ(found.coefficient.at(0), 0.25F);
  EXPECT_FLOAT_EQ(found.coefficient.at(49), 0.25F);
  EXPECT_FLOAT_EQ(found.coefficient.at(50), 0.75F);
  EXPECT_FLOAT_EQ(found.coefficient.at(100), 1.0F);
  EXPECT_FLOAT_EQ(found.coefficient.at(~0U), 1.0F);
}

TEST(ParseCovap, GivesTheCodecAndTheInterval) {
  const auto read = [](const char* text) {
    const auto [always, interval, coefficient, choice] = parse_compression(text);
    EXPECT_EQ(coefficient, Coefficient{}) << text;
    return std::tuple(always, interval, choice);
  };
  EXPECT_EQ(read("covap(fp16, interval=4)"), std::tuple(false, 4U, "fp16"));
  EXPECT_EQ(read(" covap ( none ,interval = 8 ) "), std::tuple(false, 8U, "none"));
  EXPECT_EQ(read("covap(terngrad(bits=4), interval=1)"), std::tuple(false, 1U, "terngrad(bits=4)"));
  EXPECT_EQ(read("always(covap(onebit, interval=2))"), std::tuple(true, 2U, "onebit"));
  EXPECT_EQ(read("onebit"), std::tuple(false, 1U, "onebit"));
  EXPECT_EQ(read("covaps"), std::tuple(false, 1U, "covaps")) << "another word";
}

TEST(ParseCovap, WhatCannotBeIsRefusedWithTheReason) {
  const std::pair<const char*, const char*> refused[] = {
      {"covap()", "cannot be read"},
      {"covap(fp16", "cannot be read"},
      {"covap(fp16,)", "cannot be read"},
      {"covap(dgc(ratio=0.01))", "takes over the optimizer's momentum"},
      {"covap(fp16, 4)", "covap does not know '4'"},
      {"covap(fp16, max_interval=4)", "covap does not know 'max_interval'"},
      {"covap(fp16, interval=4, interval=5)", "it has interval twice"},
      {"covap(fp16, interval=0)", "interval=0 is not a whole number from 1 to 8"},
      {"covap(fp16, interval=9)", "interval=9 is not a whole number from 1 to 8"},
      {"covap(fp16, interval=-1)", "interval=-1 is not"},
      {"covap(fp16, interval=2.5)", "interval=2.5 is not"},
      {"covap(fp16, interval=auto)", "interval=auto is not"},
      {"covap(fp16, interval=)", "interval= is not"},
      {"covap(fp16, interval=99999999999)", "interval=99999999999 is not"},
      {"covap(twobit, interval=4)", "twobit"},
      {"covap(covap(fp16, interval=2), interval=2)", "covap"},
      {"covap(auto, interval=4)", "name a codec"},
      {"covap(auto(onebit, fp16), interval=4)", "name a codec"},
      {"covap(always(fp16), interval=4)", "write always(covap(...))"},
      {"covap(dgc(ratio=0.01), interval=2)", "dgc(ratio=0.01) takes over the optimizer's momentum"},
  };
  for (const auto& [text, why] : refused) EXPECT_NE(refusal(text).find(why), std::string::npos) << refusal(text);
  EXPECT_TRUE(takes_momentum("covap(dgc, interval=1)")) << "which is dgc";
}

TEST(ParseCovap, NeitherIntegersNorMaximaNorSharesWait) {
  Signature signature;
  EXPECT_EQ(why_not_held(signature), std::nullopt);
  signature.kind = OpKind::reducescatter;
  EXPECT_NE(why_not_held(signature).value_or("").find("reducescatter"), std::string::npos);
  signature.kind = OpKind::allreduce;
  signature.op = ReduceOp::max;
  EXPECT_TRUE(why_not_held(signature));
  signature.op = ReduceOp::adasum;
  EXPECT_TRUE(why_not_held(signature));
  signature.op = ReduceOp::sum;
  EXPECT_FALSE(why_not_held(signature));
  signature.dtype = DType::int64;
  EXPECT_TRUE(why_not_held(signature));
}

TEST(KeepsState, WhatWaitsIsKept) {
  EXPECT_FALSE(keeps_state("fp16"));
  EXPECT_FALSE(keeps_state("covap(fp16, interval=1)"));
  EXPECT_TRUE(keeps_state("covap(fp16, interval=2)"));
  EXPECT_TRUE(keeps_state("always(covap(none, interval=2))"));
  EXPECT_EQ(interval_of("always(covap(none, interval=2))"), 2U);
  EXPECT_EQ(device_codecs("covap(fp16, interval=2)"), Specs{"fp16"});
}

TEST(CheckCompression, EveryCodecOfTheTextMustBeThere) {
  for (const char* text : {"none", "onebit", "auto", "auto(onebit, terngrad(bits=4))", "always(fp16)", "always(auto)",
                           "covap(none, interval=3)", "always(covap(terngrad(bits=4), interval=8))"}) {
    EXPECT_NO_THROW(check_compression(text)) << text;
  }
  for (const char* text : {"", "twobit", "onebit(x=1)", "auto(onebit, twobit)", "auto(auto)", "always(twobit)",
                           "auto(always(onebit))", "always(auto(twobit))", "always(onebit", "auto(",
                           "covap(twobit, interval=3)", "auto(covap(fp16, interval=2))"}) {
    EXPECT_THROW(check_compression(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace casync
